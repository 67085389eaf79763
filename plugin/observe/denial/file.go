package denial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"
)

// The defaults of FileOptions.
const (
	DefaultMaxBytes = 64 << 20
	DefaultKeep     = 5
)

// FileOptions configures a File.
type FileOptions struct {
	Path     string
	MaxBytes int64 // of a file, unless a single batch is larger; 0: DefaultMaxBytes
	Keep     int   // how many full files are kept beside it, as Path.1 (the youngest), Path.2, …; 0: DefaultKeep
}

// File is a sink that appends to a file and rotates it. It begins a new file when the current one is full, and when
// logrotate or another process has renamed or removed it. After a reload two processes write to one file. Only their
// own user can read new files.
//
// lumberjack does not serve here: it keeps writing to a file that was moved, two of its processes rotate over each
// other, it appends to a torn line, and its backups have other names.
//
// File is safe for concurrent use. Close waits for a running Write.
type File struct {
	options FileOptions

	mu     sync.Mutex
	file   *os.File // nil: the next Write opens it
	writer *Writer
}

// NewFile makes the sink. The first Write opens the file.
func NewFile(options FileOptions) *File {
	options.MaxBytes = cmp.Or(options.MaxBytes, DefaultMaxBytes)
	options.Keep = cmp.Or(options.Keep, DefaultKeep)
	return &File{options: options}
}

// Write implements Sink.
func (f *File) Write(ctx context.Context, batch []Line) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	length := int64(0)
	for _, line := range batch {
		length += int64(len(line.Text)) + 1
	}
	if err := f.prepare(length); err != nil {
		return err
	}
	return f.writer.Write(ctx, batch)
}

// Close closes the file. The next Write opens it again.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.close()
}

func (f *File) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file, f.writer = nil, nil
	return err
}

// prepare makes the open file the one at the path, with room for length more bytes.
func (f *File) prepare(length int64) error {
	if err := f.reopen(); err != nil {
		return err
	}
	info, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("stat the file: %w", err)
	}
	if info.Size() == 0 || info.Size()+length <= f.options.MaxBytes {
		return nil
	}
	if err := f.rotate(); err != nil {
		return err
	}
	return f.reopen()
}

// reopen opens the file at the path, unless it is the open one.
func (f *File) reopen() error {
	if f.file != nil && f.isCurrent() {
		return nil
	}
	if err := f.close(); err != nil {
		return fmt.Errorf("close the file that was moved: %w", err)
	}
	file, err := os.OpenFile(f.options.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the file: %w", err)
	}
	torn, err := endsWithinLine(file)
	if err != nil {
		return errors.Join(fmt.Errorf("read the end of the file: %w", err), file.Close())
	}
	f.file, f.writer = file, &Writer{to: file, torn: torn}
	return nil
}

// endsWithinLine reports whether the last line has no line break, because the machine stopped or the disk was full.
func endsWithinLine(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	_, err = file.ReadAt(last[:], info.Size()-1)
	return last[0] != '\n', err
}

// isCurrent reports whether the open file is still the one at the path. It returns false on an error, which opening the
// file then returns.
func (f *File) isCurrent() bool {
	there, err := os.Stat(f.options.Path)
	if err != nil {
		return false
	}
	open, err := f.file.Stat()
	return err == nil && os.SameFile(there, open)
}

// rotate renames the full file and the earlier ones, and replaces the oldest. Each step is a rename, so that readers
// see whole files. The next reopen closes the open file. A missing file was never full, or another process has just
// rotated it.
func (f *File) rotate() error {
	for n := f.options.Keep - 1; n >= 0; n-- {
		if err := os.Rename(f.numbered(n), f.numbered(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the file: %w", err)
		}
	}
	return nil
}

// numbered returns the name of the nth file; 0 is the current one.
func (f *File) numbered(n int) string {
	if n == 0 {
		return f.options.Path
	}
	return f.options.Path + "." + strconv.Itoa(n)
}

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
	return err
}
