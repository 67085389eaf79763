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
	"time"
)

// maxSocketPath is what fits into the kernel's address of a unix socket.
const maxSocketPath = 107

// inspection is how often a process looks whether the socket is still its own.
const inspection = 250 * time.Millisecond

// listen opens the socket at path, taking it over from the process that has it: the new socket is bound beside it and
// renamed over it, so there is no instant without one. No process removes the path at its end, because by then it may
// belong to the process that took it over; a stale path fails as a missing one does. own is what lies at path from then
// on.
func listen(path string) (listener net.Listener, own os.FileInfo, err error) {
	beside := path + "." + strconv.Itoa(os.Getpid())
	if len(beside) > maxSocketPath {
		return nil, nil, fmt.Errorf(
			"socket path %s is too long for a unix socket (%d bytes with its process id, at most %d): choose a shorter -kong-prefix",
			path, len(beside), maxSocketPath)
	}
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("remove what an earlier process of this id left: %w", err)
	}
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: beside, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf(
			"listen on the socket (does the directory of -kong-prefix exist, and may this user write to it?): %w", err)
	}
	unix.SetUnlinkOnClose(false)
	if own, err = os.Stat(beside); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("take over the socket: %w", err), unix.Close(), os.Remove(beside))
	}
	return unix, own, nil
}

// orphanTimeout is how long a process that Kong started continues without its Kong and without a connection.
const orphanTimeout = 10 * time.Second

// supervisors are variables that name a supervisor as the parent: it ends the process itself.
var supervisors = []string{
	"INVOCATION_ID", "NOTIFY_SOCKET", "LISTEN_FDS", "SUPERVISOR_ENABLED", "KUBERNETES_SERVICE_HOST",
}

// startedByKong reports whether one of Kong's workers started this process, which has an empty environment then, or an
// nginx as its parent. A process without a parent but init was started by something else.
func startedByKong(environ []string, parent int) bool {
	foreign := false // a variable that no shell sets: Kong starts plugins through a shell
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains(supervisors, name) {
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

// guard watches over a process's socket and its parent.
type guard struct {
	path       string
	own        os.FileInfo // what lay at path when this process had opened it
	parent     int         // 0: Kong did not start this process, which then never ends by itself
	taken      chan struct{}
	log        *slog.Logger
	clients    func() (open int, accepted uint64)
	superseded atomic.Bool // another process has the socket, and there is no connection
}

// watch closes taken when another process has taken over the socket, and calls end when Kong has left this process
// alone. It ends with ctx. Without a file at the path, no process has taken the socket.
func (g *guard) watch(ctx context.Context, end func()) error {
	ticker := time.NewTicker(inspection)
	defer ticker.Stop()
	var check orphanCheck
	for taken := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			if file, err := os.Stat(g.path); !taken && err == nil && !os.SameFile(g.own, file) {
				taken = true
				close(g.taken)
			}
			o := observation{taken: taken, orphaned: g.parent != 0 && os.Getppid() != g.parent}
			o.open, o.accepted = g.clients()
			g.superseded.Store(taken && o.open == 0)
			if g.parent != 0 && check.observe(now, o) {
				g.log.Warn(
					"shutting down: the Kong that started this process is gone or uses another one, and no client is connected",
					"socket_taken", o.taken, "parent_gone", o.orphaned, "for", orphanTimeout)
				end()
				return nil
			}
		}
	}
}
