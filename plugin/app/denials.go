package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
)

// denials is the record of denials, with the file that it may be written to.
type denials struct {
	*denial.Recorder
	file *denial.File // nil: it goes to stderr
}

// newDenials makes the record that the settings want; nil: none.
func newDenials(s *settings, node string, stderr io.Writer, log *slog.Logger) (*denials, error) {
	d := &denials{}
	options := denial.Options{Log: log, Node: node, ShowUsers: s.DenialUsers}
	switch s.DenialLog {
	case "off":
		return nil, nil
	case "stderr":
		options.Sinks = map[string]denial.Sink{"stderr": denial.NewWriter(stderr)}
	default:
		d.file = denial.NewFile(denial.FileOptions{Path: s.DenialLog, MaxBytes: s.DenialLogSize, Keep: s.DenialLogKeep})
		options.Sinks = map[string]denial.Sink{"file": d.file}
	}
	if s.DenialSaltFile != "" {
		salt, err := os.ReadFile(s.DenialSaltFile)
		if err != nil {
			return nil, fmt.Errorf("denial-salt-file: %w", err)
		}
		if len(salt) < 16 {
			return nil, fmt.Errorf("denial-salt-file: %s has %d bytes: a salt has at least 16", s.DenialSaltFile, len(salt))
		}
		options.Salt = salt
	}
	d.Recorder = denial.New(options)
	return d, nil
}

// Run writes the record until ctx ends, and then what is left of it.
func (d *denials) Run(ctx context.Context) error {
	err := d.Recorder.Run(ctx)
	if d.file != nil {
		if closed := d.file.Close(); err == nil {
			err = closed
		}
	}
	return err
}

// numbers tell what became of the record. Every reason is there from the start, so that an alert sees the first loss.
func (d *denials) numbers() metrics.Denial {
	s := d.Stats()
	n := metrics.Denial{Dropped: map[string]uint64{denial.Groups.String(): s.Folded}}
	for _, sink := range s.Sinks {
		n.Written += sink.Written.Lines
		n.Queued += int(sink.Queued.Lines)
		for reason, tally := range sink.Dropped {
			if name := denial.Reason(reason).String(); name != denial.Groups.String() {
				n.Dropped[name] += tally.Denials
			}
		}
	}
	return n
}
