// Package relay sends the events of the outbox to a topic, in the order of commits, and moves a cursor behind them.
// Each is sent at least once, and again with the same id after an error or a change of the process.
//
// One process at a time sends: the one whose session holds an advisory lock. The session moves the cursor too, so a
// process that has lost its lock cannot. It runs beside the leader that unpacks usage, which does not wait for Kafka.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
)

const (
	// maxBatch bounds the events that are read and sent at once: 25 MiB at most, usually 100 KiB.
	maxBatch = 100
	// every is the time between two looks at the outbox while it is empty, and between two tries of anything.
	every = time.Second
	// sendTime and queryTime bound one try to send a batch, and the queries of one round.
	sendTime  = 10 * time.Second
	queryTime = time.Minute
)

// Options configure a Relay. All are required but Advice.
type Options struct {
	// Connect opens a session of its own, as a role with the rights of keeper.
	Connect  func(ctx context.Context) (*pgx.Conn, error)
	Lock     int64                  // the number of the advisory lock: one for each consumer
	Consumer string                 // the name of the cursor
	Topic    string                 // for logs and metrics
	Wants    func(events.Type) bool // which events the topic gets; the cursor passes the others
	// Send sends events of different tenants, and returns nil when all are stored. Other errors than a Partial retry all.
	Send   func(ctx context.Context, batch []events.Event) error
	Log    *slog.Logger
	Advice func(error) string // what an operator has to do about an error, or ""; nil: there is no advice
}

// Partial is the error of a Send that has stored some of its events.
type Partial interface {
	error
	// Left returns the indexes of the events to be sent again, and of those that will never be taken.
	Left() (retry, rejected []int)
}

// Relay sends the events of one topic. It is safe for concurrent use.
type Relay struct {
	options Options
	job     leadership.Job

	mu    sync.Mutex
	stats Stats
}

// Stats counts what a process has sent to a topic.
type Stats struct {
	Topic    string       `label:"topic"`
	Leading  bool         `metric:"topic_leader"`                       // this process sends
	Failing  bool         `metric:"topic_failing"`                      // the last try failed
	Sent     uint64       `metric:"topic_events_total result=sent"`     // events that were stored
	Rejected uint64       `metric:"topic_events_total result=rejected"` // events that will never be stored
	Lag      []outbox.Lag `metric:""`                                   // of this topic, while this process sends
}

// New makes a relay. Run starts it.
func New(o Options) *Relay {
	r := &Relay{options: o, stats: Stats{Topic: o.Topic}}
	r.job = leadership.Job{
		Connect: o.Connect, Lock: o.Lock, Every: every, Lead: r.lead,
		Waiting: func() { r.job.Fault.Record(nil) }, // the process that leads reports its own failures
		Fault: &leadership.Fault{
			Log: o.Log.With("topic", o.Topic), Level: slog.LevelWarn, Advice: o.Advice, Ends: "sending events succeeds again",
			Begins: "sending events failed: they wait in Postgres, and this process tries again",
		},
	}
	return r
}

// Stats returns what the relay has done.
func (r *Relay) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.stats
	now.Failing = r.job.Fault.Failing()
	return now
}

// Run sends, or waits for the lock, until ctx ends. After an error of Postgres it starts a new session, so it always
// returns nil.
func (r *Relay) Run(ctx context.Context) error { return leadership.Run(ctx, r.job) }

func (r *Relay) lead(ctx context.Context, conn *pgx.Conn) error {
	r.update(func(s *Stats) { s.Leading = true })
	defer r.update(func(s *Stats) { s.Leading, s.Lag = false, nil })
	starting, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	if err := outbox.Start(starting, conn, r.options.Consumer); err != nil { // so that what waits is counted at once
		return err
	}
	for {
		more, err := r.round(ctx, conn)
		if err != nil {
			return err
		}
		if !more {
			leadership.Pause(ctx, every)
		}
	}
}

// round sends the next events, and reports whether there may be more.
func (r *Relay) round(ctx context.Context, conn *pgx.Conn) (more bool, err error) {
	reading, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	entries, err := outbox.Read(reading, conn, r.options.Consumer, maxBatch)
	if err != nil {
		return false, err
	}
	var batch []events.Event
	for _, e := range entries {
		if r.options.Wants(e.Type) {
			batch = append(batch, e.Event)
		}
	}
	if err := r.send(ctx, conn, batch); err != nil {
		return false, err
	}
	moving, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	if len(entries) > 0 {
		err := pgx.BeginFunc(moving, conn, func(tx pgx.Tx) error {
			return outbox.Move(moving, tx, r.options.Consumer, entries[len(entries)-1].Position)
		})
		if err != nil {
			return false, err
		}
	}
	if err := r.readLag(moving, conn); err != nil {
		return false, err
	}
	r.job.Fault.Record(nil)
	return len(entries) == maxBatch, nil
}

// send sends a batch until each event is stored or rejected, those of one tenant one after the other: Kafka may store a
// request although it has failed the one before. The error is one of Postgres, or of ctx.
func (r *Relay) send(ctx context.Context, conn *pgx.Conn, batch []events.Event) error {
	for len(batch) > 0 {
		n := countTenants(batch)
		trying, cancel := context.WithTimeout(ctx, sendTime)
		err := r.options.Send(trying, batch[:n])
		cancel()
		left := r.settle(batch[:n], err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if batch = slices.Concat(left, batch[n:]); len(left) == 0 {
			continue
		}
		r.job.Fault.Record(err)
		// Without the session another process sends too, and this one stops.
		reading, cancel := context.WithTimeout(ctx, queryTime)
		err = r.readLag(reading, conn)
		cancel()
		if err != nil {
			return err
		}
		leadership.Pause(ctx, every)
	}
	return nil
}

// countTenants returns how many events come before the second one of a tenant.
func countTenants(batch []events.Event) (n int) {
	seen := map[string]bool{}
	for n < len(batch) && !seen[batch[n].Tenant] {
		seen[batch[n].Tenant] = true
		n++
	}
	return n
}

// settle counts what was sent and what was rejected, and returns the events to be sent again.
func (r *Relay) settle(batch []events.Event, err error) (left []events.Event) {
	var partial Partial
	switch {
	case err == nil:
		r.update(func(s *Stats) { s.Sent += uint64(len(batch)) })
		return nil
	case !errors.As(err, &partial):
		return batch
	}
	retry, rejected := partial.Left()
	for _, i := range retry {
		left = append(left, batch[i])
	}
	for _, i := range rejected {
		r.options.Log.Error("an event will never be stored, and is skipped", "topic", r.options.Topic,
			"id", batch[i].ID, "type", batch[i].Type, "error", err)
	}
	r.update(func(s *Stats) {
		s.Rejected += uint64(len(rejected))
		s.Sent += uint64(len(batch) - len(retry) - len(rejected))
	})
	return left
}

func (r *Relay) readLag(ctx context.Context, conn *pgx.Conn) error {
	all, err := outbox.Lags(ctx, conn)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(l outbox.Lag) bool { return l.Consumer != r.options.Consumer })
	r.update(func(s *Stats) { s.Lag = all })
	return nil
}

func (r *Relay) update(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}
