package process

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

// LogWriter hands lines to stderr without ever waiting for it: Kong reads our stderr, and a worker that is busy or gone
// must not hold up requests. Lines that find the queue full are dropped and counted.
type LogWriter struct {
	out     io.Writer // of Write
	lines   chan queuedLine
	dropped atomic.Uint64
	stop    chan struct{}
	done    chan struct{}
}

// queuedLine is a line and where it goes.
type queuedLine struct {
	out  io.Writer
	text []byte
}

// NewLogWriter starts writing to out; end it with Close.
func NewLogWriter(out io.Writer) *LogWriter {
	w := &LogWriter{out: out, lines: make(chan queuedLine, logQueue), stop: make(chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

// Write never fails and never waits.
func (w *LogWriter) Write(line []byte) (int, error) { return w.queue(w.out, line) }

func (w *LogWriter) queue(out io.Writer, line []byte) (int, error) {
	select {
	case w.lines <- queuedLine{out, append([]byte(nil), line...)}:
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// To returns a writer that has its lines written to out, in the order of all lines.
func (w *LogWriter) To(out io.Writer) io.Writer { return destination{w, out} }

type destination struct {
	queue *LogWriter
	out   io.Writer
}

func (d destination) Write(line []byte) (int, error) { return d.queue.queue(d.out, line) }

func (w *LogWriter) run() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.write(line)
		case <-w.stop:
			for {
				select {
				case line := <-w.lines:
					w.write(line)
				default:
					return
				}
			}
		}
	}
}

// write writes a line, and before it how many were dropped. A stderr that is gone cannot be reported.
func (w *LogWriter) write(line queuedLine) {
	if n := w.dropped.Swap(0); n > 0 {
		fmt.Fprintf(
			line.out,
			`{"level":"WARN","msg":"log lines were dropped, because the output was too slow","lines":%d}`+"\n",
			n,
		)
	}
	_, _ = line.out.Write(line.text)
}

// Close writes what is queued, if that takes no longer than lastWords.
func (w *LogWriter) Close() {
	close(w.stop)
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}
