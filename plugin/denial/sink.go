package denial

import (
	"context"
	"io"
)

// Line is one finished event.
type Line struct {
	Org     string // the tenant whom the line names, by which lines can be spread; not always UTF-8; "" for none
	Text    []byte // one JSON object without a line break; it must not be changed
	Denials uint64 // that it counts
}

// Sink takes lines away. Its Write is called from one goroutine, one batch after another.
type Sink interface {
	// Write takes a batch of at least one line, all of it: after an error the recorder writes the same batch again, later,
	// until it is taken or given up, so a line can arrive twice (its id tells), and lines of different batches in any
	// order. It should return soon after ctx ends, must not try again by itself, and must not keep the batch.
	Write(ctx context.Context, batch []Line) error
}

// Writer is a sink that writes to a stream, each batch in one call. A stream that does not take it, such as a pipe that
// nobody reads, holds up this sink alone.
type Writer struct {
	to     io.Writer
	torn   bool // the last call ended within a line
	buffer []byte
}

// NewWriter makes a sink of a stream.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements Sink. What failed within a line is ended by a line break, so that it damages no other.
func (w *Writer) Write(_ context.Context, batch []Line) error {
	w.buffer = w.buffer[:0]
	if w.torn {
		w.buffer = append(w.buffer, '\n')
	}
	for _, line := range batch {
		w.buffer = append(append(w.buffer, line.Text...), '\n')
	}
	n, err := w.to.Write(w.buffer)
	if n > 0 {
		w.torn = w.buffer[n-1] != '\n'
	}
	if err == nil && n < len(w.buffer) {
		err = io.ErrShortWrite
	}
	return err
}
