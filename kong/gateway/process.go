package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

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
