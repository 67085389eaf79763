package replay

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// The formats of logs.
const (
	FormatAuto  = "auto" // by the first line
	FormatKong  = "kong" // JSON of Kong's file-log or http-log
	FormatNginx = "nginx"
	FormatCSV   = "csv"
)

// LogOptions configures how a log is read. The zero value reads any format, and no headers.
type LogOptions struct {
	Format      string   // "": FormatAuto
	NginxFormat string   // the log_format of nginx; "": combined
	Headers     []string // the request headers to read
	FirstLine   int64    // lines before this one are skipped; 0: none is

	Until limit.Micros // a line whose request started later holds none; 0: any time is right
}

// Log reads the requests of one log, line by line.
type Log struct {
	Name     string
	Size     int64 // in bytes, compressed if it is; 0: unknown
	Unparsed int64 // lines that hold no request

	options LogOptions
	file    io.Closer
	read    *countingReader
	lines   *lines
	parser  parser
	first   []byte    // a line that was read to find the parser; nil: it holds no request, or was parsed
	long    []Problem // the lines before first, which are too long
	free    func() *Request
	fault   error      // of the text before its first line
	pending []*Request // of the last line, last first
	problem func(Problem)
	broken  func(Problem) // of a text that ends before its time, such as a truncated gzip file, with the line to resume at
}

// parser reads the requests of lines. It gets the memory of each from add. After an error, none of the line counts.
type parser interface {
	parse(line []byte, add func() *Request) error
	// logsHeader reports whether the log has a header, named as HTTP spells it, of each request that had it.
	logsHeader(name string) bool
}

// Problem is a line of a log that holds no request.
type Problem struct {
	Log     string `json:"log"`
	Line    int64  `json:"line"`
	Problem string `json:"problem"`
}

// Open opens a log. Close it afterwards.
func Open(file string, o LogOptions) (*Log, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	l, err := NewLog(file, f, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		l.Size = info.Size()
	}
	l.file = f
	return l, nil
}

// NewLog returns a log that is read from r.
func NewLog(name string, r io.Reader, o LogOptions) (*Log, error) {
	l := &Log{Name: name, options: o, read: &countingReader{Reader: r}}
	var err error
	if l.lines, err = newLines(l.read); err == nil {
		err = l.begin()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// StatesTenants reports whether the log names the tenant of each request, in place of what Kong knows of it. Such a log
// is decided by resolve.ForCallers.
func (l *Log) StatesTenants() bool {
	p, isCSV := l.parser.(*csvParser)
	return isCSV && p.statesTenants()
}

// Close closes the file of a log.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// Read returns how many bytes of the log have been read. It may be called at any time.
func (l *Log) Read() int64 { return l.read.n.Load() }

// Lines returns how many lines of the log have been read.
func (l *Log) Lines() int64 { return l.lines.number }

// next returns the next request, or nil at the end. It counts and reports lines that hold none.
func (l *Log) next() *Request {
	for _, p := range l.long {
		if p.Line >= l.options.FirstLine {
			l.Unparsed++
			l.problem(p)
		}
	}
	l.long = nil
	for len(l.pending) == 0 {
		line, err := l.first, l.fault
		if l.first = nil; line == nil && err == nil {
			line, err = l.lines.next()
		}
		wanted := l.lines.number >= l.options.FirstLine
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLong):
			if wanted {
				l.report(err)
			}
		case err != nil:
			l.broken(Problem{l.Name, l.lines.number + 1, err.Error()})
			return nil
		case wanted:
			if line = bytes.TrimSpace(line); len(line) > 0 {
				l.parse(line)
			}
		}
	}
	last := len(l.pending) - 1
	r := l.pending[last]
	l.pending = l.pending[:last]
	return r
}

// parse reads the requests of a line.
func (l *Log) parse(line []byte) {
	err := l.parser.parse(line, func() *Request {
		r := l.free()
		r.Log, r.Line = l, l.lines.number
		l.pending = append(l.pending, r)
		return r
	})
	for _, r := range l.pending {
		if err == nil && l.options.Until > 0 && r.At > l.options.Until {
			err = fmt.Errorf("started_at: %s is in the future", instantTime(r.At).Format(time.RFC3339))
		}
	}
	if err != nil {
		l.pending = l.pending[:0]
		l.report(err)
	}
	slices.Reverse(l.pending)
}

// report counts and reports a line that holds no request.
func (l *Log) report(err error) {
	l.Unparsed++
	l.problem(Problem{l.Name, l.lines.number, err.Error()})
}

// begin makes the parser of the log from its first line that is not empty.
func (l *Log) begin() (err error) {
	var line []byte
	for len(line) == 0 {
		if line, err = l.lines.next(); errors.Is(err, io.EOF) {
			l.parser = newKongParser(nil) // of no lines
			return nil
		}
		if errors.Is(err, errLong) {
			l.long = append(l.long, Problem{l.Name, l.lines.number, err.Error()})
		} else if err != nil {
			l.fault = err
			l.parser = newKongParser(nil)
			return nil
		}
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff"))) // some editors begin a text with this mark
	}
	l.first = slices.Clone(line)
	format := cmp.Or(l.options.Format, FormatAuto)
	if format == FormatAuto {
		format = detect(line)
	}
	switch format {
	case FormatKong:
		l.parser = newKongParser(l.options.Headers)
	case FormatNginx:
		l.parser, err = newNginxParser(l.options.NginxFormat, l.options.Headers)
	case FormatCSV:
		l.parser, err = newCSVParser(string(line))
		l.first = nil
	default:
		err = fmt.Errorf("format %q: must be auto, kong, nginx or csv", format)
	}
	return err
}

// detect returns the format of a log by its first line.
func detect(line []byte) string {
	switch {
	case line[0] == '{' || line[0] == '[':
		return FormatKong
	case isCSVHead(string(line)):
		return FormatCSV
	}
	return FormatNginx
}

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
