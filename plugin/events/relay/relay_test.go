package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/events/outbox"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// topic is a topic that stores events, except those that a test makes it fail with.
type topic struct {
	mu       sync.Mutex
	stored   []string
	failing  error
	rejects  string // the id of an event
	retries  string // the id of an event, which is not stored the first time
	attempts int
}

// left is a Partial.
type left struct{ retry, rejected []int }

func (*left) Error() string                   { return "stored in part" }
func (l *left) Left() (retry, rejected []int) { return l.retry, l.rejected }

func (k *topic) send(_ context.Context, batch []events.Event) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attempts++
	if k.failing != nil {
		return k.failing
	}
	l := &left{}
	for i, e := range batch {
		switch e.ID {
		case k.rejects:
			l.rejected = append(l.rejected, i)
		case k.retries:
			l.retry, k.retries = append(l.retry, i), ""
		default:
			k.stored = append(k.stored, e.ID)
		}
	}
	if len(l.retry)+len(l.rejected) > 0 {
		return l
	}
	return nil
}

func (k *topic) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failing = err
}

// ids returns what is stored, in order.
func (k *topic) ids() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.stored, " ")
}

// world is a database with an outbox.
type world struct {
	t    *testing.T
	dsn  string
	pool *pgxpool.Pool
	log  *logtest.Text
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dsn := pgtest.Granted(t).RoleDSN(pgtest.Keeper)
	return &world{t: t, dsn: dsn, pool: pgtest.Pool(t, dsn), log: &logtest.Text{}}
}

// run runs a relay to a topic until end is called, or the test ends.
func (w *world) run(to *topic) (r *Relay, end func()) {
	r = New(Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, w.dsn) },
		Lock:    7, Consumer: "kafka", Topic: "policy.updates",
		Wants: func(t events.Type) bool { return t == events.PolicyUpdated },
		Send:  to.send, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		assert.NoError(w.t, <-ended)
	})
	w.t.Cleanup(end)
	return r, end
}

// add adds events of a type in one transaction.
func (w *world) add(kind events.Type, ids ...string) {
	w.t.Helper()
	err := pgx.BeginFunc(w.t.Context(), w.pool, func(tx pgx.Tx) error {
		var all []events.Event
		for _, id := range ids {
			all = append(all, events.Event{
				ID: id, Source: events.Control, Type: kind, Time: time.Unix(1_790_000_000, 0), Tenant: "acme",
				Data: []byte(`{}`),
			})
		}
		return outbox.Add(w.t.Context(), tx, all...)
	})
	require.NoError(w.t, err)
}

// await waits until a condition holds.
func (w *world) await(holds func() bool) {
	w.t.Helper()
	await.NoError(w.t, "the condition", func() error {
		if !holds() {
			return fmt.Errorf("it does not hold; logged %s", w.log)
		}
		return nil
	})
}

// awaitCursor waits until the cursor has passed all events. What was sent before may be sent again until then.
func (w *world) awaitCursor() {
	w.t.Helper()
	const behind = `SELECT count(*) FROM rate_limiter.outbox WHERE position IS NULL OR position > coalesce(
		(SELECT position FROM rate_limiter.outbox_cursors WHERE consumer = 'kafka'), 0)`
	w.await(func() bool {
		var n int
		require.NoError(w.t, w.pool.QueryRow(w.t.Context(), behind).Scan(&n))
		return n == 0
	})
}

func TestEventsOfItsTypesAreSentInOrderAndTheCursorPassesTheOthers(t *testing.T) {
	w, to := newWorld(t), &topic{}
	r, end := w.run(to)
	w.add(events.PolicyUpdated, "a", "b")
	w.add(events.QuotaThreshold, "other")
	w.add(events.PolicyUpdated, "c")
	w.add(events.AbuseStep, "last")
	w.await(func() bool { return to.ids() == "a b c" })
	w.awaitCursor()
	end()
	if s := r.Stats(); s.Leading || s.Failing || s.Rejected != 0 {
		t.Errorf("after its end: %+v", s)
	}
	var many []string
	for i := range 3 * maxBatch {
		many = append(many, fmt.Sprint("m-", i))
	}
	w.add(events.PolicyUpdated, many...)
	w.run(to) // goes on at the cursor
	w.await(func() bool { return to.ids() == "a b c "+strings.Join(many, " ") })
}

func TestOneProcessSendsAndAnotherTakesOver(t *testing.T) {
	w, to := newWorld(t), &topic{}
	first, end := w.run(to)
	w.await(func() bool { return first.Stats().Leading })
	second, _ := w.run(to)
	w.add(events.PolicyUpdated, "a", "b")
	w.awaitCursor()
	end()
	w.add(events.PolicyUpdated, "c")
	w.await(func() bool { return second.Stats().Sent == 1 })
	assert.Equal(t, "a b c", to.ids())
}

func TestWhatATopicDoesNotTakeIsSentAgainInOrderAndWhatItRejectsIsSkipped(t *testing.T) {
	w, to := newWorld(t), &topic{rejects: "b", retries: "c"}
	to.fail(errors.New("no broker"))
	r, _ := w.run(to)
	w.add(events.PolicyUpdated, "a", "b", "c", "d")
	w.await(func() bool { s := r.Stats(); return s.Failing && waiting(r) == 4 })
	w.await(func() bool { to.mu.Lock(); defer to.mu.Unlock(); return to.attempts > 1 })
	if w.log.Count("sending events failed") != 1 || w.log.Count("no broker") != 1 {
		t.Errorf("logged %s; want the failure once", w.log)
	}
	to.fail(nil)
	w.await(func() bool { return r.Stats().Sent == 3 && w.log.Count("succeeds again") > 0 }) // it is logged last
	if s := r.Stats(); s.Rejected != 1 || to.ids() != "a c d" || w.log.Count("skipped") != 1 ||
		w.log.Count("succeeds again") != 1 {
		t.Errorf("%+v, stored %q, logged %s", s, to.ids(), w.log)
	}
}

func TestASessionThatWasKilledMeanwhileSendsAtLeastOnce(t *testing.T) {
	w, to := newWorld(t), &topic{}
	to.fail(errors.New("no broker"))
	r, _ := w.run(to)
	w.add(events.PolicyUpdated, "a", "b")
	w.await(func() bool { return r.Stats().Failing })
	if _, err := w.pool.Exec(t.Context(),
		`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7`); err != nil {
		t.Fatal(err)
	}
	to.fail(nil)
	w.add(events.PolicyUpdated, "c")
	w.await(func() bool {
		return strings.HasSuffix(to.ids(), "c") && waiting(r) == 0 && !r.Stats().Failing
	})
	var once []string
	for id := range strings.SplitSeq(to.ids(), " ") {
		if !slices.Contains(once, id) {
			once = append(once, id)
		}
	}
	assert.Equal(t, "a b c", strings.Join(once, " "),
		"stored %q, want each at least once, in the order of commits", to.ids())
}

func TestEventsCountAsWaitingAlsoBeforeTheFirstIsSent(t *testing.T) {
	w := newWorld(t)
	w.add(events.PolicyUpdated, "a", "b")
	r, _ := w.run(&topic{failing: errors.New("no topic")})
	w.await(func() bool { return waiting(r) == 2 && r.Stats().Lag[0].Oldest > 0 })
}

func TestAUserWithoutTheRightsOfKeeperIsLoggedOnceWithAdvice(t *testing.T) {
	w := newWorld(t)
	dsn := pgtest.Granted(t).RoleDSN(pgtest.Operator)
	r := New(Options{
		Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, dsn) },
		Lock:    7, Consumer: "kafka", Topic: "policy.updates", Wants: func(events.Type) bool { return true },
		Send: (&topic{}).send, Log: slog.New(slog.NewTextHandler(w.log, nil)),
		Advice: func(error) string { return "give a login of keeper" },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.await(func() bool { return r.Stats().Failing })
	cancel()
	if err := <-ended; err != nil || w.log.Count("permission denied") != 1 || w.log.Count("give a login of keeper") != 1 {
		t.Errorf("%v, logged %s", err, w.log)
	}
}

// waiting returns how many events wait, or -1 if that was not read yet.
func waiting(r *Relay) int64 {
	if lag := r.Stats().Lag; len(lag) == 1 {
		return lag[0].Waiting
	}
	return -1
}

func TestTheMetricsAreByTopic(t *testing.T) {
	w, to := newWorld(t), &topic{rejects: "b"}
	r, _ := w.run(to)
	w.add(events.PolicyUpdated, "a", "b")
	w.await(func() bool { s := r.Stats(); return s.Sent == 1 && s.Rejected == 1 && !s.Failing && waiting(r) == 0 })
	values := promtest.CheckPublished(t, "testdata/metrics.golden", metrics.Read(r.Stats))
	promtest.WantValues(t, values, "rate_limiter_topic_",
		map[string]float64{
			"events_total sent policy.updates": 1, "events_total rejected policy.updates": 1, "leader policy.updates": 1,
			"failing policy.updates": 0, "dropped_events policy.updates": 0,
		})
}
