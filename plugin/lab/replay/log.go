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
	pending []*Request // of the last line
	problem func(Problem)
	broken  func(Problem) // of a text that ends before its time, such as a truncated gzip file, with the line to resume at
}

type parser interface {
	parse(line []byte) ([]*Request, error)
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
		l.parser, err = newParser(l.lines.first(), o)
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
	for len(l.pending) == 0 {
		line, err := l.lines.next()
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
	r := l.pending[0]
	l.pending = l.pending[1:]
	return r
}

func (l *Log) parse(line []byte) {
	all, err := l.parser.parse(line)
	for _, r := range all {
		if r.Log, r.Line = l, l.lines.number; l.options.Until > 0 && r.At > l.options.Until {
			err = fmt.Errorf("started_at: %s is in the future", instantTime(r.At).Format(time.RFC3339))
		}
	}
	if err != nil {
		l.report(err)
		return
	}
	l.pending = all
}

func (l *Log) report(err error) {
	l.Unparsed++
	l.problem(Problem{l.Name, l.lines.number, err.Error()})
}

// newParser returns the parser of a log by its first line that is not empty.
func newParser(line []byte, o LogOptions) (parser, error) {
	format := cmp.Or(o.Format, FormatAuto)
	isAuto := format == FormatAuto
	switch {
	case len(line) == 0, format == FormatKong, isAuto && (line[0] == '{' || line[0] == '['):
		return newKongParser(o.Headers), nil
	case format == FormatCSV, isAuto && isCSVHead(string(line)):
		return newCSVParser(string(line))
	case format == FormatNginx, isAuto:
		return newNginxParser(o.NginxFormat, o.Headers)
	}
	return nil, fmt.Errorf("format %q: must be auto, kong, nginx or csv", format)
}

// maxLine bounds how many bytes of a line are kept. The entry of a request is a few kilobytes.
const maxLine = 1 << 20

// errLong is the fault of a line that is too long to be an entry.
var errLong = fmt.Errorf("is longer than %d bytes", maxLine)

// lines reads lines of a text, which may be compressed by gzip.
type lines struct {
	in     *bufio.Reader
	number int64 // of the last line, counted from 1
	line   []byte
	broken error // of a compressed text that ends within its header
}

const (
	gzipMagic     = "\x1f\x8b" // what a compressed text begins with
	byteOrderMark = "\ufeff"   // what some editors begin a text with
	bufferSize    = 64 << 10   // bytes
)

func newLines(r io.Reader) (*lines, error) {
	in := bufio.NewReaderSize(r, bufferSize)
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(magic) > 0 && string(magic) == gzipMagic[:len(magic)] {
		text, err := gzip.NewReader(in)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return &lines{in: in, broken: io.ErrUnexpectedEOF}, nil
		case err != nil:
			return nil, fmt.Errorf("decompress: %w", err)
		}
		in = bufio.NewReaderSize(text, bufferSize)
	}
	if mark, _ := in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = in.Discard(len(byteOrderMark)) // it is in the buffer
	}
	return &lines{in: in}, nil
}

// first returns the first line that is not empty, or what of it fits into the buffer. It is still to be read.
func (l *lines) first() []byte {
	if l.broken != nil {
		return nil
	}
	text, _ := l.in.Peek(bufferSize) // an error shows again when the text is read
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Clone(bytes.TrimSpace(line))
}

// next returns the next line, until the next call. The error of a line that is too long is errLong, and that of the end
// io.EOF; others are of the text.
func (l *lines) next() ([]byte, error) {
	if l.broken != nil {
		return nil, l.broken
	}
	err := bufio.ErrBufferFull
	for l.line = l.line[:0]; errors.Is(err, bufio.ErrBufferFull); {
		var part []byte
		if part, err = l.in.ReadSlice('\n'); len(l.line) <= maxLine {
			l.line = append(l.line, part...)
		}
	}
	if err != nil && !(errors.Is(err, io.EOF) && len(l.line) > 0) {
		return nil, err // a line that breaks off is left to a later run
	}
	if l.number++; len(l.line) > maxLine {
		return nil, errLong
	}
	return l.line, nil
}

type countingReader struct {
	io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(to []byte) (int, error) {
	n, err := c.Reader.Read(to)
	c.n.Add(int64(n))
	return n, err
}
