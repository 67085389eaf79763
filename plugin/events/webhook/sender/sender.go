// Package sender sends events to webhooks ([Sender]). It reads them from the outbox, and denials from a table of
// their own, makes deliveries for each webhook that wants them, and posts these. Its state is in Postgres (migration
// 00007_events.sql), so after a crash the next leader goes on. Package webhook defines signatures, delays and which
// addresses may be called.
//
// # At least once
//
// Making deliveries, moving the cursor of the outbox and deleting the denials is one transaction. A delivery ends when
// the answer to it is recorded. If the process dies between the answer and its record, the delivery is sent once more,
// with the same id and body.
//
// All writes go through the session that holds an advisory lock, so one process sends. When it loses the session it
// ends all requests before it tries to lead again.
//
// # Receivers that fail
//
// A webhook has one request at a time. After a failed try, the webhook waits and so does the delivery: a receiver that
// is down costs a request from time to time, and a delivery that a receiver denies does not block those after it.
// Webhooks whose last try failed share half of the requests that run at a time, so they do not delay the others. The
// queue of a webhook is bounded; what does not fit is dropped and counted.
package sender

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/webhook"
)

// Lock is the number of the advisory lock of a sender.
const Lock = 0x726c_686f_6f6b

const (
	// defaultEvery is the time between two looks at the outbox, and at what is due.
	defaultEvery = time.Second
	// retryFactor times this is the pause before a new session.
	retryFactor = 5
	// defaultDrain is how long requests may go on when the process ends.
	defaultDrain = 5 * time.Second
	// roundTime and recordTime bound what a database that does not answer costs: the session. The process ends after
	// recordTime also within a round.
	roundTime  = time.Minute
	recordTime = 5 * time.Second
	// choresEvery is the time between two runs of the chores.
	choresEvery = 15 * time.Second
	// deliveriesKept is how long a delivery is listed after it was made.
	deliveriesKept = 7 * 24 * time.Hour

	// maxInFlight bounds the requests that run at a time, and maxFailing those to webhooks whose last try failed.
	maxInFlight = 64
	maxFailing  = maxInFlight / 2
)

const sessionSettings = `SELECT set_config('lock_timeout', '5s', false), set_config('statement_timeout', '30s', false),
	set_config('timezone', 'UTC', false)`

// Options configure a Sender. Connect and Log are required.
type Options struct {
	// Connect opens a session of its own, as a role with the rights of keeper.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	Targets webhook.Targets
	Log     *slog.Logger
	// Advice returns what an operator has to do about an error, or ""; nil: there is no advice.
	Advice func(error) string

	Times Times
	Drain time.Duration    // how long requests may go on when the process ends; 0: 5 s
	Roots *x509.CertPool   // nil: those of the system
	Now   func() time.Time // nil: time.Now
	// Clock reads the clock by which deliveries are due and secrets end; nil: that of the database.
	Clock  func(ctx context.Context, conn *pgx.Conn) (time.Time, error)
	Random func() float64 // from 0 to below 1; nil: math/rand
	Every  time.Duration  // 0: 1 s
}

// Sender sends events to webhooks. Any number of processes may run one: the process that holds the lock sends.
type Sender struct {
	options Options
	job     leadership.Job
	client  *http.Client
	ahead   atomic.Int64 // Options.Clock, of Options.Now, in nanoseconds

	mu    sync.Mutex
	stats Stats
}

// New returns a sender. It does no I/O.
func New(o Options) *Sender {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Clock == nil {
		o.Clock = readClock
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	o.Every, o.Drain = cmp.Or(o.Every, defaultEvery), cmp.Or(o.Drain, defaultDrain)
	t := &o.Times
	t.Connect, t.FirstByte = cmp.Or(t.Connect, 5*time.Second), cmp.Or(t.FirstByte, 10*time.Second)
	t.Total = cmp.Or(t.Total, 15*time.Second)
	s := &Sender{options: o}
	s.job = leadership.Job{
		Connect: o.Connect, SetUp: setUp, Lock: Lock, Every: o.Every, Retry: retryFactor * o.Every, Lead: s.lead,
		Fault: &leadership.Fault{
			Log: o.Log, Level: slog.LevelError, Advice: o.Advice,
			Begins: "sending events to webhooks failed, and is tried again",
		},
	}
	s.client = newClient(&s.options.Targets, o.Times, o.Roots)
	return s
}

// Run sends, or waits to send, until ctx ends. Then it waits for running requests, at most for the drain time. After an
// error it starts a new session, so it always returns nil.
func (s *Sender) Run(ctx context.Context) error { return leadership.Run(ctx, s.job) }

// readClock reads the clock of the database, by which other processes write deliveries and secrets.
func readClock(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
	err = conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	return now, err
}

// now returns the time by Options.Clock, as it was read last.
func (s *Sender) now() time.Time { return s.options.Now().Add(time.Duration(s.ahead.Load())) }

func (s *session) setClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	now, err := s.options.Clock(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	s.ahead.Store(int64(now.Sub(s.options.Now())))
	return nil
}

// session is a connection that holds the lock, with the requests that run.
type session struct {
	*Sender
	conn     *pgx.Conn
	inFlight map[int64]bool // by webhook
	failing  int            // of inFlight: to webhooks whose last try failed
	outcomes chan outcome   // has room for all in flight
	choresAt time.Time

	requests context.Context // of the requests
	abort    context.CancelFunc
}

func setUp(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	return nil
}

func (s *Sender) lead(ctx context.Context, conn *pgx.Conn) error {
	s.count(func(now *Stats) { now.Leading = true })
	defer s.count(func(now *Stats) { now.Leading, now.HookCounts = false, HookCounts{} })
	l := s.newSession(ctx, conn)
	defer l.close()
	if err := l.setClock(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		more, err := l.round(ctx)
		if err != nil {
			return err
		}
		s.job.Fault.Record(nil)
		wait := s.options.Every
		if more {
			wait = 0
		}
		if err := l.await(ctx, time.After(wait)); err != nil {
			return err
		}
	}
	return l.drain()
}

func (s *Sender) newSession(ctx context.Context, conn *pgx.Conn) *session {
	l := &session{Sender: s, conn: conn, inFlight: map[int64]bool{}, outcomes: make(chan outcome, maxInFlight)}
	l.requests, l.abort = context.WithCancel(context.WithoutCancel(ctx))
	return l
}

func (s *session) close() {
	s.abort()
	for len(s.inFlight) > 0 {
		o := <-s.outcomes
		delete(s.inFlight, o.Webhook)
	}
}

// round makes deliveries of new events, starts the requests that are due, and reports whether there may be more events.
// It makes those of one read only, so that a flood of events does not delay what is due.
func (s *session) round(ctx context.Context) (more bool, err error) {
	reading, cancel := finishing(ctx, roundTime)
	defer cancel()
	if more, err = s.enqueue(reading); err != nil {
		return false, err
	}
	if now := s.options.Now(); !now.Before(s.choresAt) {
		if err := s.setClock(reading); err != nil {
			return false, err
		}
		if err := s.doChores(reading, s.now()); err != nil {
			return false, err
		}
		s.choresAt = now.Add(choresEvery)
	}
	if ctx.Err() != nil {
		return more, nil
	}
	return more, s.dispatch(reading)
}

// finishing returns a context that ends after a time, and soon after ctx has ended. A query that is cut off costs the
// session, and so the requests that run.
func finishing(ctx context.Context, length time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), length)
	stop := context.AfterFunc(ctx, func() {
		leadership.Pause(longer, recordTime)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

func (s *session) dispatch(ctx context.Context) error {
	free := maxInFlight - len(s.inFlight)
	if free <= 0 {
		return nil
	}
	busy := make([]int64, 0, len(s.inFlight))
	for id := range s.inFlight {
		busy = append(busy, id)
	}
	rows, _ := s.conn.Query(ctx, selectDue, s.now(), busy, free)
	due, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[delivery])
	if err != nil {
		return fmt.Errorf("list what is due: %w", err)
	}
	for _, d := range due {
		if d.Failing && s.failing >= maxFailing {
			break
		}
		if d.Failing {
			s.failing++
		}
		s.inFlight[d.Webhook] = true
		go func() { s.outcomes <- s.post(s.requests, d) }()
	}
	return nil
}

// await waits for an outcome, for the timer or for the end of ctx, and records all outcomes that there are.
func (s *session) await(ctx context.Context, timer <-chan time.Time) error {
	for {
		select {
		case o := <-s.outcomes:
			if err := s.record(ctx, &o); err != nil {
				return err
			}
		case <-timer:
		case <-ctx.Done():
		}
		if len(s.outcomes) == 0 {
			return nil
		}
	}
}

// drain records the outcomes of running requests until the drain time is over. It aborts what still runs then, which is
// sent again by the next leader.
func (s *session) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.Drain)
	defer cancel()
	for len(s.inFlight) > 0 && ctx.Err() == nil {
		if err := s.await(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// doChores gives up and deletes what is past its time, and counts what there is.
func (s *session) doChores(ctx context.Context, now time.Time) error {
	var lost int64
	if err := s.conn.QueryRow(ctx, giveUp, now.Add(-webhook.KeepTrying)).Scan(&lost); err != nil {
		return fmt.Errorf("give deliveries up: %w", err)
	}
	if _, err := s.conn.Exec(ctx, deleteEnded, now.Add(-deliveriesKept)); err != nil {
		return fmt.Errorf("delete deliveries: %w", err)
	}
	if _, err := s.conn.Exec(ctx, deleteSecrets, now); err != nil {
		return fmt.Errorf("delete secrets: %w", err)
	}
	var hooks HookCounts
	err := s.conn.QueryRow(ctx, countHooks).Scan(&hooks.Healthy, &hooks.Failing, &hooks.Disabled, &hooks.Waiting)
	if err != nil {
		return fmt.Errorf("count webhooks: %w", err)
	}
	s.count(func(now *Stats) { now.HookCounts, now.Dropped = hooks, now.Dropped+lost })
	return nil
}

// Stats counts what a process has done as the sender.
type Stats struct {
	Leading    bool  `metric:"webhook_leader"`
	Delivered  int64 `metric:"webhook_tries_total result=delivered"`
	Failed     int64 `metric:"webhook_tries_total result=failed"`   // tries after which the delivery is tried again
	GivenUp    int64 `metric:"webhook_tries_total result=given_up"` // deliveries
	Dropped    int64 `metric:"webhook_events_dropped_total"`        // events that did not fit a queue, or were given up
	HookCounts `metric:""`
}

// HookCounts counts webhooks by state, and the deliveries that wait; 0 unless this process sends.
type HookCounts struct {
	Healthy  int64 `metric:"webhook_subscriptions state=healthy"`
	Failing  int64 `metric:"webhook_subscriptions state=failing"`
	Disabled int64 `metric:"webhook_subscriptions state=disabled"`
	Waiting  int64 `metric:"webhook_deliveries_waiting"`
}

// Stats returns what this process has done.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Sender) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}
