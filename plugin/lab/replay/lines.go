package replay

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// maxLine bounds how many bytes of a line are kept. The entry of a request is a few kilobytes.
const maxLine = 1 << 20

// errLong is the fault of a line that is too long to be an entry.
var errLong = fmt.Errorf("is longer than %d bytes", maxLine)

// lines reads lines of a text, which may be compressed by gzip.
type lines struct {
	in     *bufio.Reader
	number int64 // of the last line, counted from 1
	long   []byte
	broken error // of a compressed text that ends within its header
}

// gzipMagic is what a compressed text begins with.
const gzipMagic = "\x1f\x8b"

// newLines returns a reader of lines.
func newLines(r io.Reader) (*lines, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(magic) == 0 || string(magic) != gzipMagic[:len(magic)] {
		return &lines{in: in}, nil
	}
	text, err := gzip.NewReader(in)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &lines{in: in, broken: io.ErrUnexpectedEOF}, nil
	case err != nil:
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return &lines{in: bufio.NewReaderSize(text, 64<<10)}, nil
}

// next returns the next line without its end, until the next call. The error of a line that is too long is errLong, and
// that of the end io.EOF; others are of the text.
func (l *lines) next() ([]byte, error) {
	if l.broken != nil {
		return nil, l.broken
	}
	line, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.nextLong(line)
	}
	switch {
	case errors.Is(err, errLong):
		l.number++
		return nil, err
	case err != nil && !(errors.Is(err, io.EOF) && len(line) > 0):
		return nil, err // a line that breaks off is left to a later run
	}
	l.number++
	if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:n-1]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// nextLong returns a line that does not fit into the buffer, of which part was read. Of one that is too long it keeps
// nothing.
func (l *lines) nextLong(part []byte) (line []byte, err error) {
	l.long = append(l.long[:0], part...)
	for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		part, err = l.in.ReadSlice('\n')
		if len(l.long) <= maxLine {
			l.long = append(l.long, part...)
		}
	}
	if len(l.long) > maxLine && (err == nil || errors.Is(err, io.EOF)) {
		return nil, errLong
	}
	return l.long, err
}

// countingReader counts the bytes that are read.
type countingReader struct {
	io.Reader
	n atomic.Int64
}

// Read implements io.Reader.
func (c *countingReader) Read(to []byte) (int, error) {
	n, err := c.Reader.Read(to)
	c.n.Add(int64(n))
	return n, err
}
