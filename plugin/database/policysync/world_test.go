package policysync_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestMain(m *testing.M) {
	if node := os.Getenv(childVariable); node != "" {
		runChild(node)
	}
	pgtest.Main(m)
}

const (
	// patience bounds every wait. Tests share a busy machine, and the pause between two loads of all rows is fifty times
	// as long as a load.
	patience = 2 * time.Minute
	glance   = 5 * time.Millisecond
	never    = time.Hour
)

// world is a database with a pool that writes to it.
type world struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOn(t, pgtest.Shared(t))
}

func worldOn(t *testing.T, server *pgtest.Server) *world {
	t.Helper()
	dsn := server.Database(t)
	return &world{t, dsn, pgtest.Pool(t, dsn)}
}

// write runs statements in one transaction, and returns the version after it.
func (w *world) write(statements string, arguments ...any) (version int64) {
	w.Helper()
	err := pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), `SET LOCAL rate_limiter.reason = 'a test'`); err != nil {
			return err
		}
		if _, err := tx.Exec(context.Background(), statements, arguments...); err != nil {
			return err
		}
		return tx.QueryRow(context.Background(), `SELECT version FROM rate_limiter.version`).Scan(&version)
	})
	require.NoError(w, err)
	return version
}

// policies inserts policies of one tenant each, and returns the version after it.
func (w *world) policies(from, to int) int64 {
	w.Helper()
	return w.write(`INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size)
		SELECT 'daily', 'tenant-' || n, 'tenant', 1000 + n, 60 FROM generate_series($1::bigint, $2::bigint) n`, from, to)
}

// value returns one value from the database.
func value[T any](w *world, sql string, arguments ...any) (v T) {
	w.Helper()
	require.NoError(w, w.pool.QueryRow(context.Background(), sql, arguments...).Scan(&v))
	return v
}

// node is a running sync.
type node struct {
	*policysync.Sync
	t     *testing.T
	log   *logged
	stop  func() // ends it and waits for that
	mu    sync.Mutex
	swaps map[int64]time.Time // the instant at which each version came into force
}

// options returns the options of a node that follows the version and does nothing else.
func (w *world) options() policysync.Options {
	return policysync.Options{
		Source: policysync.Source{DSN: w.dsn}, Node: "node-1",
		PollEvery: glance, ReloadEvery: never, BeatEvery: never, MinPause: time.Millisecond, MaxPause: 20 * time.Millisecond,
	}
}

// start runs a node until the end of the test.
func start(t *testing.T, options policysync.Options) *node {
	t.Helper()
	n := &node{t: t, log: &logged{}, swaps: map[int64]time.Time{}}
	options.Log = slog.New(slog.NewTextHandler(n.log, nil))
	options.Changed = n.changed
	s, err := policysync.New(options)
	require.NoError(t, err)
	n.Sync = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended, "Run ends")
	})
	t.Cleanup(n.stop)
	return n
}

func (n *node) changed(snapshot *policy.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	version := snapshot.Version()
	if n.swaps[version].IsZero() && version > 0 && n.Stats().Version == version {
		n.t.Errorf("version %d counts as in force before it is", version)
	}
	n.swaps[version] = time.Now()
}

// swapped returns the instant at which a version came into force.
func (n *node) swapped(version int64) (time.Time, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.swaps[version]
	return at, ok
}

// await waits until a version of the database is in force and its session counts as contact, which is after its report.
func (n *node) await(version int64) *policy.Snapshot {
	n.t.Helper()
	n.until(fmt.Sprintf("version %d is in force", version), func(s policysync.Stats) bool {
		return s.Source == policysync.FromPostgres && s.Version >= version && s.Connected
	})
	return n.Snapshot()
}

// until waits until a condition holds.
func (n *node) until(what string, so func(policysync.Stats) bool) {
	n.t.Helper()
	await.NoError(n.t, what, func() error {
		if s := n.Stats(); !so(s) {
			return fmt.Errorf("%+v\n%s", s, n.log)
		}
		return nil
	})
}

// logged records the log.
type logged struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// count returns the number of lines with a text.
func (l *logged) count(text string) (lines int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			lines++
		}
	}
	return lines
}

// limits returns the limits of a snapshot's policies, by tenant or tier.
func limits(snapshot *policy.Snapshot) map[string]int64 {
	found := map[string]int64{}
	for r := range snapshot.Policies() {
		found[r.Tenant+r.Tier] = r.Limit.Limit
	}
	return found
}

func fileIn(dir string) string { return filepath.Join(dir, policysync.FileName) }
