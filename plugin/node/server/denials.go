package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/pgtext"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/engine"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

// denials is the record of denials, with the sinks that are closed after it.
type denials struct {
	*engine.DenialRecord
	file  *denial.File  // nil: it goes to no file
	topic *denialTopic  // nil: it does not go to Kafka
	offer *denialOffers // nil: it does not go to webhooks
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
	var sink *policysync.DenialSink
	if s.DenialWebhooks || options.Recent {
		sink = policysync.NewDenialSink(policysync.Source{DSN: s.Database, File: s.DatabaseFile})
	}
	if s.DenialWebhooks {
		d.offer = &denialOffers{node: node, now: time.Now, sink: sink}
		options.Sinks["webhooks"] = d.offer
	}
	if len(options.Sinks) == 0 && !options.Recent {
		return nil, nil
	}
	if s.DenialSaltFile != "" {
		options.Salt = engine.ReadSalt("denial-salt-file", s.DenialSaltFile, log)
	}
	d.DenialRecord = engine.NewDenialRecord(options, sink)
	return d, nil
}

// Run writes the record until ctx ends, and then what is left of it.
func (d *denials) Run(ctx context.Context) error {
	err := d.DenialRecord.Run(ctx)
	if d.topic != nil {
		d.topic.producer.Close()
	}
	if d.file != nil {
		if closed := d.file.Close(); err == nil {
			err = closed
		}
	}
	return err
}

// denialTopic is a sink of the record of denials: a topic of Kafka, where each line is the data of an event.
type denialTopic struct {
	producer *kafka.Producer
	source   string
}

// newDenialTopic makes the sink. It opens no connection. The error is about a setting.
func newDenialTopic(s *settings, node string) (*denialTopic, error) {
	producer, err := kafka.New(s.Kafka, s.DenialTopic)
	return &denialTopic{producer: producer, source: events.NodeSource(node)}, err
}

var _ denial.Partial = (*kafka.Unsent)(nil)

func (k *denialTopic) Write(ctx context.Context, batch []denial.Line) error {
	all := make([]events.Event, len(batch))
	for i, line := range batch {
		all[i] = events.Event{
			ID: line.ID, Source: k.source, Type: events.Denial, Time: line.Time, Tenant: line.Org, Data: line.Text,
		}
	}
	return k.producer.Send(ctx, all)
}

const (
	// notWantedFor is how long denials are not offered after no webhook wanted any.
	notWantedFor = 10 * time.Second
	// maxReport bounds the bytes of the lines in one report; a line has far less.
	maxReport = 256 << 10
)

// denialReporter offers denials to webhooks. It returns how many were added, and the IDs of those that were dropped.
type denialReporter interface {
	Report(ctx context.Context, node string, all []policysync.DenialEvent) (kept int, dropped []string, err error)
}

// denialOffers is a sink of the record of denials: those that a webhook wants go to Postgres, where ratelimit serve
// reads them. The others count as written.
type denialOffers struct {
	node string
	now  func() time.Time
	sink denialReporter

	notBefore time.Time // no webhook wanted denials a moment ago
}

// Write implements [denial.Sink]. Its error is a [denial.Partial] with the lines that are in no successful report, so
// that a later try does not offer the others again, and those that Postgres had no room for.
func (d *denialOffers) Write(ctx context.Context, batch []denial.Line) error {
	if d.now().Before(d.notBefore) {
		return nil
	}
	var all []policysync.DenialEvent
	var full []int
	size, reported := 0, 0
	for i, line := range batch {
		all = append(all, policysync.DenialEvent{
			ID: line.ID, Time: line.Time, Tenant: pgtext.Storable(line.Org), Data: line.Text,
		})
		if size += len(line.Text); size < maxReport && i < len(batch)-1 {
			continue
		}
		kept, dropped, err := d.sink.Report(ctx, d.node, all)
		if err != nil {
			return &notOffered{err, reported, len(batch), full}
		}
		if kept == policysync.NotWanted {
			d.notBefore = d.now().Add(notWantedFor)
			break
		}
		for ; reported <= i; reported++ {
			if slices.Contains(dropped, batch[reported].ID) {
				full = append(full, reported)
			}
		}
		all, size = all[:0], 0
	}
	if len(full) > 0 {
		return &notOffered{errNoRoom, len(batch), len(batch), full}
	}
	return nil
}

var errNoRoom = errors.New("denials were dropped: too many of their tenants wait for webhooks")

// notOffered is the [denial.Partial] of a batch, with the indexes of the lines that are left, [from, end), and of those
// that were dropped.
type notOffered struct {
	error
	from, end int
	dropped   []int
}

func (e *notOffered) Unwrap() error { return e.error }

func (e *notOffered) Left() (retry, rejected []int) {
	for i := e.from; i < e.end; i++ {
		retry = append(retry, i)
	}
	return retry, e.dropped
}

// MayArrive implements [denial.Partial]. A report whose answer was lost can be kept, but no later try can learn that.
func (*notOffered) MayArrive() bool { return false }
