package process

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	// logQueue bounds the lines that wait for a slow reader of stderr.
	logQueue = 1024
	// closeWait bounds the wait of Close for that reader.
	closeWait = time.Second
)

// LogWriter writes lines to stderr in the background. Kong reads the stderr of the plugin server, and a busy worker
// must not delay requests. Lines that do not fit into the queue are dropped and counted.
type LogWriter struct {
	out     io.Writer // of Write
	lines   chan queuedLine
	dropped atomic.Uint64
	stop    chan struct{}
	done    chan struct{}
}

type queuedLine struct {
	out  io.Writer
	text []byte
}

// NewLogWriter returns a writer to out. Close ends it.
func NewLogWriter(out io.Writer) *LogWriter {
	w := &LogWriter{
		out: out, lines: make(chan queuedLine, logQueue), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write queues a line. It never fails and never waits.
func (w *LogWriter) Write(line []byte) (int, error) { return w.queue(w.out, line) }

func (w *LogWriter) queue(out io.Writer, line []byte) (int, error) {
	select {
	case w.lines <- queuedLine{out, append([]byte(nil), line...)}:
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// To returns a writer that queues lines for out. The order of all lines is kept.
func (w *LogWriter) To(out io.Writer) io.Writer { return destination{w, out} }

type destination struct {
	queue *LogWriter
	out   io.Writer
}

func (d destination) Write(line []byte) (int, error) { return d.queue.queue(d.out, line) }

// run writes lines until stop, and then the queued ones.
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

// write writes a line after the number of dropped lines, if any. An error cannot be reported.
func (w *LogWriter) write(line queuedLine) {
	if n := w.dropped.Swap(0); n > 0 {
		const warning = `{"level":"WARN","msg":"log lines were dropped, because the output was too slow","lines":%d}`
		fmt.Fprintf(line.out, warning+"\n", n)
	}
	_, _ = line.out.Write(line.text)
}

// Close writes the queued lines. It waits for at most closeWait.
func (w *LogWriter) Close() {
	close(w.stop)
	timer := time.NewTimer(closeWait)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	}
}
