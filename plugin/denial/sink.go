package denial

import (
	"context"
	"io"
)

// Line is one finished event.
type Line struct {
	Org     string // the line's tenant, by which a sink may partition; not always UTF-8; "" for none
	Text    []byte // one JSON object without a line break; it must not be changed
	Denials uint64 // that it counts
}

// Sink stores lines. One goroutine calls Write, one batch after another.
type Sink interface {
	// Write stores a batch of at least one line. After an error the recorder retries the whole batch later, so a line can
	// arrive twice, with the same id, and batches in any order. Write should return soon after ctx ends. It must not retry
	// and must not keep the batch.
	Write(ctx context.Context, batch []Line) error
}

// Writer is a sink that writes to a stream, each batch in one call. A stream that blocks, such as a pipe without a
// reader, delays this sink only.
type Writer struct {
	to     io.Writer
	torn   bool // the last call ended within a line
	buffer []byte
}

// NewWriter makes a sink of a stream.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements Sink. After an error within a line it begins with a line break, so that the next line is whole.
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
