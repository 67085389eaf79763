package usage

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const testLock = 0x7465_7374

// world is a database with a leader.
type world struct {
	testing.TB
	dsn    string
	pool   *pgxpool.Pool
	leader *Leader
	log    *logtest.Text
	kill   killer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOf(t, pgtest.Shared(t).Database(t))
}

// worldOf returns the world of a database.
func worldOf(t testing.TB, dsn string) *world {
	t.Helper()
	w := &world{TB: t, dsn: dsn, log: &logtest.Text{}}
	w.pool = pgtest.Pool(t, w.dsn)
	w.kill.disarm()
	w.leader = w.newLeader()
	return w
}

func (w *world) newLeader() *Leader {
	return NewLeader(Options{Connect: w.connect, Lock: testLock, Log: slog.New(slog.NewTextHandler(w.log, nil))})
}

func (w *world) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(w.dsn)
	if err != nil {
		return nil, err
	}
	config.Tracer = &w.kill
	return pgx.ConnectConfig(ctx, config)
}

// killer closes the connection of the leader before one of its statements, except the last one, whose error it ignores.
type killer struct{ left atomic.Int64 }

func (k *killer) disarm()      { k.left.Store(1 << 40) }
func (k *killer) arm(at int64) { k.left.Store(at) }

// TraceQueryStart implements pgx.QueryTracer.
func (k *killer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, query pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(query.SQL, "unlock") && k.left.Add(-1) == 0 {
		_ = conn.PgConn().Conn().Close()
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// process is a process of a node.
type process struct {
	node, epoch string
	seq         int64
}

func newProcess(number int) *process {
	return &process{node: fmt.Sprint("node-", number%2), epoch: fmt.Sprintf("%016x", number)}
}

// next returns the next batch of the process.
func (p *process) next(rows ...usage.Row) *usage.Batch {
	p.seq++
	return &usage.Batch{Epoch: p.epoch, Seq: p.seq, Span: 5 * time.Second, Rows: rows}
}

// count returns a row that counts admitted requests.
func count(tenant string, admitted int64) usage.Row {
	return usage.Row{
		Key:    usage.Key{Tenant: tenant, Endpoint: "GET /a"},
		Counts: usage.Counts{Admitted: admitted, Remaining: usage.NoRemaining},
	}
}

// report stores a batch, and returns whether it was new.
func (w *world) report(node string, b *usage.Batch, age time.Duration) (stored bool) {
	w.Helper()
	payload, err := b.MarshalBinary()
	require.NoError(w, err)
	return w.reportBytes(node, b.Epoch, b.Seq, age, payload)
}

func (w *world) reportBytes(node, epoch string, seq int64, age time.Duration, payload []byte) (stored bool) {
	w.Helper()
	err := w.pool.QueryRow(w.Context(), `SELECT rate_limiter.report_usage($1, $2, $3, $4, $5)`, node, epoch, seq, age,
		payload).Scan(&stored)
	require.NoError(w, err)
	return stored
}

// lead runs one round as the leader, and waits until an earlier session has lost its lock.
func (w *world) lead() Stats {
	w.Helper()
	var done Stats
	await.That(w, "this session leads", func() bool {
		l := w.newLeader()
		l.shift, l.options.GapAfter = w.leader.shift, w.leader.options.GapAfter
		var err error
		done, err = l.Once(w.Context())
		require.NoError(w, err)
		return done.Leading
	})
	return done
}

// number returns the result of a query for one number.
func (w *world) number(sql string, args ...any) (n int64) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(w.Context(), sql, args...).Scan(&n), "%s", sql)
	return n
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.pool.Exec(w.Context(), sql, args...)
	require.NoError(w, err, "%s", sql)
}

// admitted returns the sum over a table.
func (w *world) admitted(table string) int64 {
	w.Helper()
	return w.number(`SELECT coalesce(sum(admitted), 0)::bigint FROM rate_limiter.` + table)
}

// sortedKeys returns the keys of rows in the order of a batch.
func sortedKeys(rows map[usage.Key]usage.Counts) []usage.Key {
	return slices.SortedFunc(maps.Keys(rows), func(a, b usage.Key) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Policy, b.Policy))
	})
}

// run runs a leader with short pauses until the test ends.
func (w *world) run() *Leader { return w.runWith(func(*Options) {}) }

// runWith runs a leader with other options.
func (w *world) runWith(change func(*Options)) *Leader {
	w.Helper()
	l := w.newLeader()
	l.options.Every = 5 * time.Millisecond
	change(&l.options)
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		assert.NoError(w, <-ended)
	})
	return l
}
