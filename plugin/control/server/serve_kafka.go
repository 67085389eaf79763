package server

import (
	"context"
	"errors"
	"log/slog"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/relay"
)

// The consumers of the outbox that send to Kafka, and the numbers of their advisory locks.
const (
	updatesConsumer = "kafka-updates"
	noticesConsumer = "kafka-notices"
	updatesLock     = 0x726c_6b61_666b_01
	noticesLock     = 0x726c_6b61_666b_02
)

// isUpdate reports whether the topic of updates gets events of a type.
func isUpdate(t events.Type) bool { return t == events.PolicyUpdated }

// isNotice reports whether the topic of notices gets events of a type. Nodes send denials themselves.
func isNotice(t events.Type) bool { return t != events.PolicyUpdated && t != events.Denial }

// topics sends the events of the outbox to Kafka.
type topics struct {
	relays    []*relay.Relay
	producers []*kafka.Producer
}

// newTopics makes the relays of both topics; nil: there is no Kafka. It opens no connection.
func (s *Settings) newTopics(log *slog.Logger) (*topics, error) {
	if len(s.Kafka.Brokers) == 0 {
		return nil, nil
	}
	if s.Keeper == nil {
		return nil, errors.New("--kafka-brokers: events are read with the rights of keeper: " +
			"give its login by --keeper-database-file in place of off, or remove --kafka-brokers")
	}
	all := &topics{}
	for _, o := range []relay.Options{
		{Consumer: updatesConsumer, Lock: updatesLock, Topic: s.Kafka.UpdatesTopic, Wants: isUpdate},
		{Consumer: noticesConsumer, Lock: noticesLock, Topic: s.Kafka.NoticesTopic, Wants: isNotice},
	} {
		producer, err := kafka.New(s.Kafka.Options, o.Topic)
		if err != nil {
			return nil, err
		}
		o.Connect, o.Send, o.Log, o.Advice = s.Keeper.connect, producer.SendInOrder, log, leaderAdvice
		all.producers, all.relays = append(all.producers, producer), append(all.relays, relay.New(o))
	}
	return all, nil
}

// runs returns what runs in the background for each topic.
func (all *topics) runs() (runs []func(context.Context) error) {
	for i, r := range all.relays {
		runs = append(runs, func(ctx context.Context) error {
			defer all.producers[i].Close()
			return r.Run(ctx)
		})
	}
	return runs
}
