package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/kafka"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/relay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/abuse"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

// newLeader returns the leader of this process. It unpacks usage, and tidies as ratelimit tidy does. With a watcher it
// also writes notices of used quotas. The detector looks for abuse.
func (d *Database) newLeader(log *slog.Logger, watcher *quota.Watcher, detector *abuse.Detector) *usage.Leader {
	o := usage.Options{
		Connect: d.connect,
		Lock:    rows.TidyLock,
		Chores: func(ctx context.Context, session *pgx.Conn) (more bool, err error) {
			moreRows, tidied := rows.TidyOnce(ctx, session, rows.DefaultRetention)
			moreEvents, events := outbox.Tidy(ctx, session)
			moreDenials, denials := rows.DropDenials(ctx, session)
			// None of them keeps the others from their work.
			return moreRows || moreEvents || moreDenials, errors.Join(tidied, events, denials, detector.Run(ctx, session))
		},
		Log:    log,
		Advice: leaderAdvice,
	}
	if watcher != nil {
		o.Check = watcher.Check
	}
	return usage.NewLeader(o)
}

// marksOfCluster is the number of marks in a cluster: enough that each server has some.
const marksOfCluster = 64

// newWatcher returns what looks for used quotas and lost counts, or nil if the process has no limits whose buckets it
// can read. History is read from the store.
func (d *decider) newWatcher(tiers *api.Tiers, store *rows.DB) *quota.Watcher {
	if d.operators == nil {
		return nil
	}
	var restore []*quota.Restore
	for i, pool := range d.config.Config.Pools() {
		one := &quota.Restore{
			History: store, Marks: d.marks[i], Number: 1, Raise: d.operators.Raise,
			Pool: uint8(i), Name: d.config.Config.PoolName(i),
		}
		if len(pool.Redis.ClusterNodes) > 0 {
			one.Number = marksOfCluster
		}
		restore = append(restore, one)
	}
	return quota.NewWatcher(quota.Options{
		Routes: slices.Sorted(maps.Keys(d.config.Routes)),
		Plan: func() *resolve.Plan {
			if plan := d.rest.Decider.Policies.Load(); plan != nil && plan.Snapshot() != nil {
				return plan
			}
			return nil
		},
		Tiers:  tiers,
		Peek:   d.operators.Peek,
		Report: reportNotices,
		Log:    d.log,

		Restore: restore,
	})
}

// reportNotices adds the events of notices to the outbox.
func reportNotices(ctx context.Context, tx pgx.Tx, at time.Time, notices []quota.Notice) error {
	all := make([]events.Event, len(notices))
	for i := range notices {
		n := &notices[i]
		data, err := json.Marshal(n)
		if err != nil {
			return fmt.Errorf("encode a notice: %w", err)
		}
		all[i] = events.Event{
			ID: n.ID(), Source: events.Control, Type: events.QuotaThreshold, Time: at, Tenant: n.Tenant, Data: data,
		}
	}
	return outbox.Add(ctx, tx, all...)
}

// leaderAdvice returns what an operator has to do about an error of the leader.
func leaderAdvice(err error) string {
	if errors.As(err, new(*usage.RightsError)) {
		return "give a login of the role keeper by --keeper-database-file, or off and run ratelimit tidy from cron; " +
			"the grants are in migrations/README.md"
	}
	return migrations.Advice(err)
}

// connect opens a connection. Its errors name the setting of this database.
func (d *Database) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := d.Connect()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if fault := migrations.ConnectFault(err, d.Name); fault != "" {
		return nil, errors.New(fault)
	}
	return conn, err
}

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

// newTopics returns the tasks that relay events to both topics, and registers their numbers; none: there is no Kafka.
// It opens no connection.
func (s *Settings) newTopics(
	numbers *prometheus.Registry, log *slog.Logger,
) (runs []func(context.Context) error, err error) {
	if len(s.Kafka.Brokers) == 0 {
		return nil, nil
	}
	if s.Keeper == nil {
		return nil, errors.New("--kafka-brokers: events are read with the rights of keeper: " +
			"give its login by --keeper-database-file in place of off, or remove --kafka-brokers")
	}
	var relays []*relay.Relay
	for _, o := range []relay.Options{
		{Consumer: updatesConsumer, Lock: updatesLock, Topic: s.Kafka.UpdatesTopic, Wants: isUpdate},
		{Consumer: noticesConsumer, Lock: noticesLock, Topic: s.Kafka.NoticesTopic, Wants: isNotice},
	} {
		producer, err := kafka.New(s.Kafka.Options, o.Topic)
		if err != nil {
			return nil, err
		}
		o.Connect, o.Send, o.Log, o.Advice = s.Keeper.connect, producer.Send, log, leaderAdvice
		made := relay.New(o)
		relays, runs = append(relays, made), append(runs, func(ctx context.Context) error {
			defer producer.Close()
			return made.Run(ctx)
		})
	}
	numbers.MustRegister(metrics.Read(func() (all []relay.Stats) {
		for _, r := range relays {
			all = append(all, r.Stats())
		}
		return all
	}))
	return runs, nil
}
