package app

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	// logQueue is how many lines wait for a reader of stderr that is slow.
	logQueue = 1024
	// lastWords is how long the end of the process waits for that reader.
	lastWords = time.Second
)

// logWriter hands lines to stderr without ever waiting for it: Kong reads our stderr, and a worker that is busy or gone
// must not hold up requests. Lines that find the queue full are dropped and counted.
type logWriter struct {
	lines   chan []byte
	dropped atomic.Uint64
	stop    chan struct{}
	done    chan struct{}
}

// newLogWriter starts writing to out; end it with close.
func newLogWriter(out io.Writer) *logWriter {
	w := &logWriter{lines: make(chan []byte, logQueue), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run(out)
	return w
}

// Write never fails and never waits.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- append([]byte(nil), line...):
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

func (w *logWriter) run(out io.Writer) {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.write(out, line)
		case <-w.stop:
			for {
				select {
				case line := <-w.lines:
					w.write(out, line)
				default:
					return
				}
			}
		}
	}
}

// write writes a line, and before it how many were dropped. Nobody can be told that stderr is gone.
func (w *logWriter) write(out io.Writer, line []byte) {
	if n := w.dropped.Swap(0); n > 0 {
		fmt.Fprintf(out, `{"level":"WARN","msg":"log lines were dropped, because stderr was not read fast enough","lines":%d}`+"\n", n)
	}
	_, _ = out.Write(line)
}

// close writes what is queued, if that takes no longer than lastWords.
func (w *logWriter) close() {
	close(w.stop)
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}
