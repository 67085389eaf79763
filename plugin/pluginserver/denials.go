package pluginserver

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
func newDenials(s *settings, node string, stderr io.Writer, log *slog.Logger) *denials {
	d := &denials{}
	options := denial.Options{Log: log, Node: node, ShowUsers: s.DenialUsers}
	switch s.DenialLog {
	case "off":
		return nil
	case "stderr":
		options.Sinks = map[string]denial.Sink{"stderr": denial.NewWriter(stderr)}
	default:
		d.file = denial.NewFile(denial.FileOptions{Path: s.DenialLog, MaxBytes: s.DenialLogSize, Keep: s.DenialLogKeep})
		options.Sinks = map[string]denial.Sink{"file": d.file}
	}
	if s.DenialSaltFile != "" {
		options.Salt = readSalt(s.DenialSaltFile, log)
	}
	d.Recorder = denial.New(options)
	return d
}

// readSalt returns the salt in a file. nil stands for a random one, where the file has none: then the hashes of this
// process differ from those of others, which is logged; requests are served all the same.
func readSalt(file string, log *slog.Logger) []byte {
	salt, err := os.ReadFile(file)
	if err == nil && len(salt) < 16 {
		err = fmt.Errorf("%s has %d bytes: a salt has at least 16", file, len(salt))
	}
	if err != nil {
		log.Error("denial-salt-file cannot be used: users are hashed with a random salt", "error", err)
		return nil
	}
	return salt
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

// numbers returns the counts of written, queued and dropped lines. Every reason is there from the start, so that an
// alert sees the first loss.
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
