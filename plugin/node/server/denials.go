package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

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

// Write implements [denial.Sink].
func (k *denialTopic) Write(ctx context.Context, batch []denial.Line) error {
	all := make([]events.Event, len(batch))
	for i, line := range batch {
		all[i] = events.Event{
			ID: line.ID, Source: k.source, Type: events.Denial, Time: line.Time, Tenant: line.Org, Data: line.Text,
		}
	}
	return k.producer.Send(ctx, all)
}
