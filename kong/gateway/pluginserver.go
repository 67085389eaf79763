package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// startTimeout bounds how long a plugin server may take until it listens, on a busy machine too.
	startTimeout = 2 * time.Minute
	// dialEvery is the time between two attempts to connect.
	dialEvery = 5 * time.Millisecond
	// maxSocketPath is the longest path that a unix socket's address can hold.
	maxSocketPath = 107
)

// pluginServer is a plugin server with each worker's side of the socket.
type pluginServer struct {
	info    *PluginInfo
	socket  string
	process *process // nil when the gateway does not run it
	workers []*worker
}

func newPluginServer(ctx context.Context, given PluginServer, g *Gateway) (*pluginServer, error) {
	s := &pluginServer{info: given.Info, socket: given.Socket}
	query := given.Query
	if given.Binary != "" {
		query = []string{given.Binary, "-dump"}
	}
	if query != nil {
		info, err := QueryPlugin(ctx, query...)
		if err != nil {
			return nil, err
		}
		s.info = info
	}
	if given.Binary != "" {
		s.socket = filepath.Base(given.Binary) + ".socket"
		s.process = &process{
			binary: given.Binary, args: append([]string{"-kong-prefix", g.options.Prefix}, given.Args...),
			log: g.options.Log, name: s.info.Name, spawns: &g.counters.Spawns,
		}
	}
	if !filepath.IsAbs(s.socket) {
		s.socket = filepath.Join(g.options.Prefix, s.socket)
	}
	if len(s.socket) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than %d bytes", s.socket, maxSocketPath)
	}
	if !slices.Contains(s.info.Phases, accessPhase) && !slices.Contains(s.info.Phases, logPhase) {
		return nil, fmt.Errorf("plugin %s has neither of the phases that are simulated: access and log", s.info.Name)
	}
	for range g.options.Workers {
		s.workers = append(s.workers, newWorker(s.socket, g.node, &g.options))
	}
	return s, nil
}

// awaitListening returns when the server accepts connections, or with an error when ctx ends before.
func (s *pluginServer) awaitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(dialEvery)
	defer ticker.Stop()
	for {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("plugin server %s does not listen: %w: %w", s.info.Name, ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// forgetInstances drops a plugin's instances in every worker.
func (s *pluginServer) forgetInstances(plugin string) {
	for _, w := range s.workers {
		w.forgetInstances(plugin)
	}
}

func (s *pluginServer) close() {
	for _, w := range s.workers {
		w.close()
	}
}

const (
	// respawnEvery is the least time between two starts of a plugin server.
	respawnEvery = time.Second
	// stopGrace bounds the time of a plugin server to end after SIGTERM.
	stopGrace = 10 * time.Second
)

// process keeps a plugin server running.
type process struct {
	binary string
	name   string
	args   []string
	log    *slog.Logger
	spawns *atomic.Int64
	pid    atomic.Int64
}

// supervise starts the process, and starts it again when it dies, at most once a second. When ctx ends it stops the
// process, waits for its end, and returns.
func (p *process) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.NewTimer(respawnEvery)
		if err := p.runOnce(ctx); ctx.Err() == nil {
			p.log.Warn("plugin server terminated", "command", p.binary, "error", err)
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
		}
	}
}

// runOnce starts the process and waits for its end.
func (p *process) runOnce(ctx context.Context) error {
	command := exec.CommandContext(ctx, p.binary, p.args...)
	command.Env = []string{} // Kong's workers start it so
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopGrace
	output, writer := io.Pipe()
	command.Stdout, command.Stderr = writer, writer
	if err := command.Start(); err != nil {
		return fmt.Errorf("start plugin server: %w", err)
	}
	p.spawns.Add(1)
	p.pid.Store(int64(command.Process.Pid))
	p.log.Info("plugin server started", "command", p.binary, "pid", command.Process.Pid)
	var logging sync.WaitGroup
	logging.Go(func() { p.logLines(output, command.Process.Pid) })
	err := command.Wait()
	p.pid.Store(0)
	err = errors.Join(err, writer.Close())
	logging.Wait()
	return err
}

// logLines logs the process's output line by line, prefixed as in Kong's error log.
func (p *process) logLines(output io.Reader, pid int) {
	lines := bufio.NewReader(output)
	for {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			p.log.Info(fmt.Sprintf("[%s:%d] %s", p.name, pid, line))
		}
		if err != nil {
			return // the process has ended
		}
	}
}
