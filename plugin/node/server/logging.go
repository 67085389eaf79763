package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"log/syslog"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/jsonline"
)

// levels are the levels of the log, by which its lines are counted.
var levels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// levelOf returns the place of a level in levels: the highest that is not above it.
func levelOf(level slog.Level) int {
	for i := len(levels) - 1; i > 0; i-- {
		if level >= levels[i] {
			return i
		}
	}
	return 0
}

// logging is the log of a process: a logger, how many lines it wrote by level, and where they go. End it with close.
type logging struct {
	*slog.Logger
	counts  [len(levels)]atomic.Uint64
	lines   *process.LogWriter
	closers []io.Closer
}

// newLogging starts the log that the settings want. Lines that cannot be written there go to stderr. A place that
// cannot be opened is tried again with each line: a process that ended for its log would take the API down.
func newLogging(s *settings, stderr io.Writer) *logging {
	l := &logging{lines: process.NewLogWriter(stderr)}
	outs := l.open(s, stderr)
	handler := &countedHandler{counts: &l.counts}
	for i, out := range outs {
		options := &slog.HandlerOptions{
			Level:       s.LogLevel,
			ReplaceAttr: process.ConnectFaults(func() string { return s.DatabaseSource }),
		}
		if s.LogText {
			handler.by[i] = slog.NewTextHandler(l.lines.To(out), options)
		} else {
			handler.by[i] = slog.NewJSONHandler(jsonline.Writer(l.lines.To(out)), options)
		}
	}
	l.Logger = slog.New(handler)
	return l
}

func (l *logging) open(s *settings, stderr io.Writer) (outs [len(levels)]io.Writer) {
	same := stderr
	switch s.LogFile {
	case "stderr":
	case "syslog":
		system := &systemLog{dial: dialSyslog}
		l.closers = append(l.closers, system)
		for i, write := range [...]func(*syslog.Writer, string) error{
			(*syslog.Writer).Debug, (*syslog.Writer).Info, (*syslog.Writer).Warning, (*syslog.Writer).Err,
		} {
			outs[i] = orStderr{func(line string) error { return system.write(write, line) }, stderr}
		}
		return outs
	default:
		file := denial.NewFile(denial.FileOptions{Path: s.LogFile, MaxBytes: s.LogFileSize, Keep: s.LogFileKeep})
		if err := file.Write(context.Background(), nil); err != nil { // opens it
			writeLogError(stderr, "cannot open -log-file: lines go to stderr until it can be opened", err)
		}
		l.closers = append(l.closers, file)
		same = orStderr{func(line string) error {
			return file.Write(context.Background(), []denial.Line{{Text: []byte(line)}})
		}, stderr}
	}
	for i := range outs {
		outs[i] = same
	}
	return outs
}

// systemLog is the syslog of this machine, connected to with the first line that it takes. Lines are written one at a
// time.
type systemLog struct {
	dial func() (*syslog.Writer, error)
	to   *syslog.Writer // nil: not connected yet; it connects again by itself
}

func dialSyslog() (*syslog.Writer, error) {
	return syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "tenant-rate-limiting")
}

func (s *systemLog) write(write func(*syslog.Writer, string) error, line string) error {
	if s.to == nil {
		to, err := s.dial()
		if err != nil {
			return err
		}
		s.to = to
	}
	return write(s.to, line)
}

func (s *systemLog) Close() error {
	if s.to == nil {
		return nil
	}
	return s.to.Close()
}

// close writes what is queued, and closes what was opened.
func (l *logging) close() {
	l.lines.Close()
	for _, c := range l.closers {
		_ = c.Close() // the process ends, and every line is written already
	}
}

func (l *logging) counted() map[string]uint64 {
	all := map[string]uint64{}
	for i, level := range levels {
		all[strings.ToLower(level.String())] = l.counts[i].Load()
	}
	return all
}

// orStderr writes lines, and to stderr those that fail, with the reason.
type orStderr struct {
	write  func(line string) error // without its end
	stderr io.Writer
}

func (o orStderr) Write(line []byte) (int, error) {
	if err := o.write(string(bytes.TrimSuffix(line, []byte("\n")))); err != nil {
		writeLogError(o.stderr, "cannot write to -log-file; the line follows here", err)
		return o.stderr.Write(line)
	}
	return len(line), nil
}

func writeLogError(stderr io.Writer, what string, err error) {
	slog.New(slog.NewJSONHandler(stderr, nil)).Error(what, "error", err)
}

// countedHandler is a slog.Handler that counts lines by level, and has one handler for each.
type countedHandler struct {
	counts *[len(levels)]atomic.Uint64
	by     [len(levels)]slog.Handler
}

func (h *countedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.by[levelOf(level)].Enabled(ctx, level)
}

func (h *countedHandler) Handle(ctx context.Context, r slog.Record) error {
	level := levelOf(r.Level)
	h.counts[level].Add(1)
	return h.by[level].Handle(ctx, r)
}

func (h *countedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(one slog.Handler) slog.Handler { return one.WithAttrs(attrs) })
}

func (h *countedHandler) WithGroup(name string) slog.Handler {
	return h.with(func(one slog.Handler) slog.Handler { return one.WithGroup(name) })
}

func (h *countedHandler) with(change func(slog.Handler) slog.Handler) slog.Handler {
	changed := &countedHandler{counts: h.counts}
	for i, one := range h.by {
		changed.by[i] = change(one)
	}
	return changed
}
