package denial

import (
	"context"
	"io"
	"time"
)

// Line is one finished event.
type Line struct {
	ID      string    // names the line
	Time    time.Time // of its first denial
	Org     string    // the line's tenant, by which a sink may partition; not always UTF-8; "" for none
	Text    []byte    // one JSON object without a line break; it must not be changed
	Denials uint64    // that it counts
}

// Sink stores lines. One goroutine calls Write, one batch after another.
type Sink interface {
	// Write stores a batch of at least one line. After an error the recorder retries the whole batch later, or what is
	// left of it if the error is Partial. So a line can arrive twice, with the same id, and batches in any order. Write
	// should return soon after ctx ends. It must not keep the batch.
	Write(ctx context.Context, batch []Line) error
}

// Partial is the error of a Write that has not stored some lines of its batch.
type Partial interface {
	error
	// Left returns the indexes of the lines to be retried, and of those that the sink will never store. Both are sorted.
	Left() (retry, rejected []int)
	// MayArrive reports whether the sink may still store some of the lines to be retried. The recorder does not give them
	// up then, except at its end, and retries them until the sink knows.
	MayArrive() bool
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
