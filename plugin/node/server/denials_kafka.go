package server

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/denial"
)

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
