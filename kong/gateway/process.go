package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// respawnEvery is the least time between two starts of a plugin server.
	respawnEvery = time.Second
	// stopGrace is what a plugin server gets to end after SIGTERM.
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

// supervise starts the process and starts it again when it dies, at most once
// a second, until ctx ends; then it asks the process to end, waits, and
// returns.
func (p *process) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		next := time.NewTimer(respawnEvery)
		p.runOnce(ctx)
		select {
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
		}
	}
}

func (p *process) runOnce(ctx context.Context) {
	command := exec.CommandContext(ctx, p.binary, p.args...)
	command.Env = []string{} // as Kong's workers start it
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopGrace
	lines := &lineLogger{log: p.log, name: p.name}
	command.Stdout, command.Stderr = lines, lines
	if err := command.Start(); err != nil {
		p.log.Error("start plugin server", "command", p.binary, "error", err)
		return
	}
	p.spawns.Add(1)
	p.pid.Store(int64(command.Process.Pid))
	lines.setPID(command.Process.Pid)
	p.log.Info("plugin server started", "command", p.binary, "pid", command.Process.Pid)
	err := command.Wait()
	p.pid.Store(0)
	lines.flush()
	if ctx.Err() == nil {
		p.log.Warn("plugin server terminated", "command", p.binary, "error", err)
	}
}

// lineLogger writes a process's output to the log line by line, prefixed as in
// Kong's error log.
type lineLogger struct {
	log  *slog.Logger
	name string

	mu   sync.Mutex
	pid  int
	rest []byte
}

func (l *lineLogger) setPID(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid = pid
}

func (l *lineLogger) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.emit(line)
		l.rest = rest
	}
}

func (l *lineLogger) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.emit(l.rest)
	l.rest = nil
}

func (l *lineLogger) emit(line []byte) {
	if len(line) > 0 {
		l.log.Info("[" + l.name + ":" + strconv.Itoa(l.pid) + "] " + string(line))
	}
}
