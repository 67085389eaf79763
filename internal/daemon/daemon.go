// Package daemon runs the servers of tests: it starts a program, waits until it is ready, and ends it.
package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

const (
	// longest bounds the wait for a server. It is long because tests share a busy machine.
	longest = 2 * time.Minute
	// interval is the time between two checks of a server.
	interval = 10 * time.Millisecond
)

// Process is a process that was started. nil is one that has ended.
type Process struct {
	process *os.Process
	ended   chan struct{} // closed once the process is gone
}

// Start starts a program and waits until ready returns nil. After an error nothing runs.
func Start(cmd *exec.Cmd, ready func() error) (*Process, error) {
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd.Process, make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // a signal ends the process
	}()
	for deadline := time.Now().Add(longest); ; {
		time.Sleep(interval)
		err := errors.New("the process ended at once")
		if !p.HasEnded() {
			if err = ready(); err == nil {
				return p, nil
			}
			if time.Now().Before(deadline) {
				continue
			}
			err = fmt.Errorf("not ready within %v: %w", longest, err)
		}
		return nil, errors.Join(err, p.End(syscall.SIGKILL), errors.New(debian.LastLine(output.Bytes())))
	}
}

// Listens returns what reports whether a server accepts connections at host:port.
func Listens(address string) func() error {
	return func() error {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return connection.Close()
	}
}

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Signal sends a signal.
func (p *Process) Signal(signal os.Signal) error {
	if p == nil {
		return os.ErrProcessDone
	}
	return p.process.Signal(signal)
}

// End sends a signal and waits for the end of the process. A process that has ended is no error.
func (p *Process) End(signal os.Signal) error {
	if p.HasEnded() {
		return nil
	}
	if err := p.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", signal, p.process.Pid, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(longest):
		return fmt.Errorf("process %d did not end within %v of %v", p.process.Pid, longest, signal)
	}
}
