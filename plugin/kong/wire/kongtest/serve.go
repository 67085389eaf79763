package kongtest

import (
	"context"
	"net"
	"strings"
	"time"
)

// Serve runs serve on a listener until the test ends. stop ends it before, and returns what serve returned. A second
// stop returns nil.
func Serve(t T, listener net.Listener, serve func(context.Context, net.Listener) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, listener) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(frameTimeout):
			return context.DeadlineExceeded
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Fatalf("Serve: %v", err)
		}
	})
	return stop
}

// Log keeps the lines that a server writes, at most a thousand that no test has read. It is an io.Writer.
type Log struct{ lines chan string }

// NewLog returns an empty log.
func NewLog() *Log { return &Log{make(chan string, 1000)} }

// Write adds one line.
func (l *Log) Write(p []byte) (int, error) {
	select {
	case l.lines <- string(p):
	default:
	}
	return len(p), nil
}

// Await reads lines until one contains part, and returns that line.
func (l *Log) Await(t T, part string) string {
	t.Helper()
	deadline := time.After(frameTimeout)
	for {
		select {
		case line := <-l.lines:
			if strings.Contains(line, part) {
				return line
			}
		case <-deadline:
			t.Fatalf("no log line contains %q", part)
		}
	}
}

// Lines returns the lines that were written and not read.
func (l *Log) Lines() []string {
	lines := make([]string, 0, len(l.lines))
	for {
		select {
		case line := <-l.lines:
			lines = append(lines, line)
		default:
			return lines
		}
	}
}
