package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/supervisor"
)

// maxSocketPath is what fits into the kernel's address of a unix socket.
const maxSocketPath = 107

// inspection is how often a process looks whether it is alone.
const inspection = 250 * time.Millisecond

// socket is a listening socket, which the supervisor passes to its workers.
type socket struct {
	*os.File
	path   string      // where clients find it
	beside string      // where it lies before it is published; "": it came from systemd, which has it too
	own    os.FileInfo // what lies at path while no other process has taken it over
}

// listen makes the socket for path. publish takes path over from the process that has it: the new socket is bound
// beside it and renamed over it, so there is no instant without one. No process removes the path at its end, because by
// then it may belong to the process that took it over; a stale path fails as a missing one does.
func listen(path string) (*socket, error) {
	beside := path + "." + strconv.Itoa(os.Getpid())
	if len(beside) > maxSocketPath {
		return nil, fmt.Errorf(
			"socket path %s is too long for a unix socket (%d bytes with its process id, at most %d): choose a shorter -kong-prefix",
			path, len(beside), maxSocketPath)
	}
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove what an earlier process of this id left: %w", err)
	}
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: beside, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf(
			"listen on the socket (does the directory of -kong-prefix exist, and may this user write to it?): %w", err)
	}
	unix.SetUnlinkOnClose(false)
	file, err := unix.File()
	if err == nil {
		file, err = unblocked(file)
	}
	s := &socket{File: file, path: path, beside: beside}
	if err == nil {
		s.own, err = os.Stat(beside)
	}
	if err = errors.Join(err, unix.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on the socket: %w", err), os.Remove(beside))
	}
	return s, nil
}

// unblocked returns a copy of a socket that does not block, and that starting a process with it does not make block.
func unblocked(file *os.File) (*os.File, error) {
	defer file.Close()
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	syscall.CloseOnExec(fd)
	err = syscall.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), file.Name()), os.NewSyscallError("set nonblock", err)
}

// activated returns the sockets that systemd passes in place of those for paths: none, or one for each.
func activated(getenv func(string) string, paths []string) (sockets []*socket, err error) {
	if getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	if n := getenv("LISTEN_FDS"); n != strconv.Itoa(len(paths)) {
		return nil, fmt.Errorf("systemd passes %s sockets, %d are needed: for %s, in this order",
			n, len(paths), strings.Join(paths, " and "))
	}
	for i, path := range paths {
		file, err := unblocked(os.NewFile(uintptr(3+i), path))
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, &socket{File: file, path: path})
	}
	return sockets, nil
}

// publish gives the socket its path.
func (s *socket) publish(log *slog.Logger) error {
	if s.beside == "" {
		return nil
	}
	if c, err := net.Dial("unix", s.path); err == nil {
		log.Warn("another process listens on the socket: this one takes the path over", "socket", s.path)
		_ = c.Close() // nothing was written
	}
	if err := os.Rename(s.beside, s.path); err != nil {
		return errors.Join(fmt.Errorf("take over the socket: %w", err), os.Remove(s.beside))
	}
	return nil
}

// isTaken reports whether another process has taken the path. Without a file there, none has.
func (s *socket) isTaken() bool {
	file, err := os.Stat(s.path)
	return err == nil && s.beside != "" && !os.SameFile(s.own, file)
}

// stopListening denies new connections, which would wait until this process has ended. Systemd's go on to wait.
func (s *socket) stopListening() {
	if s.beside != "" {
		_ = syscall.Shutdown(int(s.Fd()), syscall.SHUT_RD) // it is open
	}
}

// orphanTimeout is how long a process that Kong started continues without its Kong and without a connection.
const orphanTimeout = 10 * time.Second

// managers are variables that name a process manager as the parent: it ends the process itself.
var managers = []string{
	"INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_FDS", "SUPERVISOR_ENABLED", "KUBERNETES_SERVICE_HOST",
}

// startedByKong reports whether one of Kong's workers started this process, which has an empty environment then, or an
// nginx as its parent. A process without a parent but init was started by something else.
func startedByKong(environ []string, parent int) bool {
	foreign := false // a variable that no shell sets: Kong starts plugins through a shell
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains(managers, name) {
			return false
		}
		foreign = foreign || !slices.Contains([]string{"PWD", "OLDPWD", "SHLVL", "_"}, name)
	}
	if parent <= 1 {
		return false
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(parent) + "/comm")
	return !foreign || (err == nil && strings.TrimSpace(string(name)) == "nginx")
}

// observation holds what a process can see of its Kong at one instant.
type observation struct {
	taken    bool   // another process has the socket
	orphaned bool   // the parent is gone
	open     int    // connections
	accepted uint64 // connections since the start
}

// orphanCheck decides when a process that Kong started ends: without Kong and without a connection for orphanTimeout.
// The zero value has no observations.
type orphanCheck struct {
	quiet    time.Time // since when there was no connection and no Kong; zero: there was one
	accepted uint64
}

// observe records an observation, and reports whether the process should end: another process has its socket or its
// parent is gone, and there was no connection for orphanTimeout.
func (c *orphanCheck) observe(now time.Time, o observation) bool {
	connected := o.open > 0 || o.accepted != c.accepted
	c.accepted = o.accepted
	switch {
	case connected || (!o.taken && !o.orphaned):
		c.quiet = time.Time{}
	case c.quiet.IsZero():
		c.quiet = now
	}
	return !c.quiet.IsZero() && now.Sub(c.quiet) >= orphanTimeout
}

// What a worker knows from its supervisor, as bits.
const (
	stateTaken    = 1 << iota // another process has the socket
	stateOrphaned             // the parent of the supervisor is gone
)

// guard decides whether a worker is alone.
type guard struct {
	ends        bool // with its Kong
	log         *slog.Logger
	clients     func() (open int, accepted uint64)
	state       atomic.Uint32
	superseded  atomic.Bool     // another process has the socket, and there is no connection
	replaced    context.Context // ends when another process serves new clients
	setReplaced func()
}

func (g *guard) setState(state byte) {
	if g.state.Store(uint32(state)); state&stateTaken != 0 {
		g.log.Warn("another process has taken the socket over: this one serves the connections that are open")
		g.setReplaced()
	}
}

// watch reports when Kong has left this process alone. It ends with ctx.
func (g *guard) watch(ctx context.Context) error {
	ticker := time.NewTicker(inspection)
	defer ticker.Stop()
	var check orphanCheck
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			state := g.state.Load()
			o := observation{taken: state&stateTaken != 0, orphaned: state&stateOrphaned != 0}
			o.open, o.accepted = g.clients()
			g.superseded.Store(o.taken && o.open == 0)
			if g.ends && check.observe(now, o) {
				g.log.Warn(
					"shutting down: the Kong that started this process is gone or uses another one, and no client is connected",
					"socket_taken", o.taken, "parent_gone", o.orphaned, "for", orphanTimeout)
				return supervisor.Report(supervisor.Alone)
			}
		}
	}
}
