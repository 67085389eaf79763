package pluginserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/denial"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
)

// denials is the record of denials, with the sinks that are closed after it.
type denials struct {
	*denial.Recorder
	file  *denial.File  // nil: it goes to no file
	topic *denialTopic  // nil: it does not go to Kafka
	offer *denialOffers // nil: it does not go to webhooks

	recent *recentDenials         // nil: no sample of it goes to the database
	sink   *policysync.DenialSink // nil: it does not go to the database
}

// newDenials makes the record that the settings want; nil: none. The error is about a setting.
func newDenials(s *settings, node string, stderr io.Writer, log *slog.Logger) (*denials, error) {
	if err := s.Kafka.Validate(); err != nil {
		return nil, fmt.Errorf("settings of Kafka: %w", err)
	}
	d := &denials{}
	options := denial.Options{
		Log: log, Node: node, ShowUsers: s.DenialUsers, Singles: s.DenialSingles, Sinks: map[string]denial.Sink{},
	}
	switch s.DenialLog {
	case "off":
	case "stderr":
		options.Sinks["stderr"] = denial.NewWriter(stderr)
	default:
		d.file = denial.NewFile(denial.FileOptions{Path: s.DenialLog, MaxBytes: s.DenialLogSize, Keep: s.DenialLogKeep})
		options.Sinks["file"] = d.file
	}
	if len(s.Kafka.Brokers) > 0 {
		var err error
		if d.topic, err = newDenialTopic(s, node); err != nil {
			return nil, err
		}
		options.Sinks["kafka"] = d.topic
	}
	hasDatabase := s.Database != "" || s.DatabaseFile != ""
	if s.DenialWebhooks && !hasDatabase {
		return nil, errors.New("denial-webhooks: on needs a database: give database-file, or off")
	}
	options.Recent = s.DenialRecent && hasDatabase
	if s.DenialWebhooks || options.Recent {
		d.sink = policysync.NewDenialSink(policysync.Source{DSN: s.Database, File: s.DatabaseFile})
	}
	if s.DenialWebhooks {
		d.offer = &denialOffers{node: node, now: time.Now, sink: d.sink}
		options.Sinks["webhooks"] = d.offer
	}
	if len(options.Sinks) == 0 && !options.Recent {
		return nil, nil
	}
	if s.DenialSaltFile != "" {
		options.Salt = readSalt(s.DenialSaltFile, log)
	}
	d.Recorder = denial.New(options)
	if options.Recent {
		d.recent = &recentDenials{node: node, now: time.Now, take: d.TakeRecent, sink: d.sink, log: log}
	}
	return d, nil
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
	var recent sync.WaitGroup
	if d.recent != nil {
		recent.Go(func() { d.recent.run(ctx) })
	}
	err := d.Recorder.Run(ctx)
	if recent.Wait(); d.recent != nil {
		d.recent.end(ctx)
	}
	if d.topic != nil {
		d.topic.producer.Close()
	}
	if d.sink != nil {
		d.sink.Close()
	}
	if d.file != nil {
		if closed := d.file.Close(); err == nil {
			err = closed
		}
	}
	return err
}

// numbers returns the counts of written, queued and dropped lines of every sink. Every reason is there from the start,
// so that an alert sees the first loss.
func (d *denials) numbers() metrics.Denial {
	s := d.Stats()
	var n metrics.Denial
	for _, sink := range s.Sinks {
		dropped := map[string]uint64{}
		for reason, tally := range sink.Dropped {
			dropped[denial.Reason(reason).String()] = tally.Denials
		}
		dropped[denial.Groups.String()] = s.Folded
		n.Sinks = append(n.Sinks, metrics.DenialSink{
			Name: sink.Name, Written: sink.Written.Lines, Dropped: dropped, Queued: int(sink.Queued.Lines),
			Failing: sink.Failing,
		})
	}
	if d.recent != nil {
		n.Sinks = append(n.Sinks, d.recent.numbers())
	}
	return n
}
