//go:build nokafka

package kafka

import (
	"context"
	"errors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
)

var errAbsent = errors.New("kafka-brokers: this program has no client of Kafka: leave the setting out, " +
	"or use a program that make build has built")

// Producer stands for the producer that this program does not have.
type Producer struct{}

// New returns an error.
func New(Options, string) (*Producer, error) { return nil, errAbsent }

// Send returns an error.
func (*Producer) Send(context.Context, []events.Event) error { return errAbsent }

// Close does nothing.
func (*Producer) Close() {}
