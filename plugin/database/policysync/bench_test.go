package policysync_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

// BenchmarkSync uses SYNC_ROWS rows (default 100,000): one part tenants, four policies, five overrides. They are
// inserted without triggers.
func BenchmarkSync(b *testing.B) {
	rows := 100_000
	if text := os.Getenv("SYNC_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	dsn := pgtest.Shared(b).Database(b)
	fill(b, dsn, rows/10)
	dir := b.TempDir()
	options := policysync.Options{
		Source: policysync.Source{DSN: dsn}, Dir: dir, ReloadEvery: never, Node: "node-1",
		Log: slog.New(slog.DiscardHandler),
	}
	b.Run("load and save all rows", func(b *testing.B) {
		for b.Loop() {
			s, stop := running(b, options, 1)
			b.ReportMetric(float64(s.Stats().Rows), "rows")
			stop()
		}
		info, err := os.Stat(fileIn(dir))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size())/float64(rows), "file-B/row")
	})
	b.Run("read the saved snapshot", func(b *testing.B) {
		before := heap()
		for b.Loop() {
			s, err := policysync.New(options)
			if err != nil {
				b.Fatal(err)
			}
			if s.Load(); s.Snapshot() == nil {
				b.Fatal("there is no snapshot")
			}
			b.StopTimer()
			b.ReportMetric(float64(heap()-before)/float64(rows), "heap-B/row")
			b.StartTimer()
			runtime.KeepAlive(s)
		}
	})
	b.Run("one change", func(b *testing.B) { benchmarkChange(b, dsn, options) })
}

// benchmarkChange measures from the commit of a change until its snapshot is in force.
func benchmarkChange(b *testing.B, dsn string, options policysync.Options) {
	inForce := make(chan int64, 1000)
	options.Dir = ""
	options.Changed = func(snapshot *policy.Snapshot) { inForce <- snapshot.Version() }
	_, stop := running(b, options, 1)
	defer stop()
	<-inForce
	pool := pgtest.Pool(b, dsn)
	var slowest, all time.Duration
	for n := 0; b.Loop(); n++ {
		var version int64
		err := pool.QueryRow(context.Background(), `UPDATE rate_limiter.policies SET "limit" = $1
			WHERE tenant = $2 AND name = 'limit-1'
			RETURNING (SELECT version + 1 FROM rate_limiter.version)`, n%1000+1, fmt.Sprint("tenant-", n%1000+1)).Scan(&version)
		if err != nil {
			b.Fatal(err)
		}
		committed := time.Now()
		for <-inForce < version {
		}
		took := time.Since(committed)
		slowest, all = max(slowest, took), all+took
	}
	b.ReportMetric(float64(all.Microseconds())/float64(b.N), "commit-to-snapshot-µs")
	b.ReportMetric(float64(slowest.Microseconds()), "slowest-µs")
}

// running starts a sync, waits until it has a version from Postgres, and returns a function that stops it.
func running(b *testing.B, options policysync.Options, version int64) (*policysync.Sync, func()) {
	b.Helper()
	loaded := make(chan struct{}, 1)
	changed := options.Changed
	var s *policysync.Sync
	options.Changed = func(snapshot *policy.Snapshot) {
		if changed != nil {
			changed(snapshot)
		}
		if s.Stats().Source == policysync.FromPostgres && snapshot.Version() >= version {
			select {
			case loaded <- struct{}{}:
			default:
			}
		}
	}
	s, err := policysync.New(options)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-loaded
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
}

func fill(b *testing.B, dsn string, tenants int) {
	b.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, fmt.Sprintf(`BEGIN; SET LOCAL session_replication_role = replica;
		INSERT INTO rate_limiter.tenants (id, tier) SELECT 'tenant-' || n, 'gold' FROM generate_series(1, %[1]d) n;
		INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size)
		SELECT 'limit-' || i, 'tenant-' || n, 'tenant', 1000 + n, 3600
			FROM generate_series(1, %[1]d) n, generate_series(1, 4) i;
		INSERT INTO rate_limiter.overrides (kind, tenant, "user", factor, reason, author, permanent)
			SELECT 'multiplier', 'tenant-' || n, 'user-' || n || '-' || i, 1500, 'contract ' || n, 'ann@example.com', true
			FROM generate_series(1, %[1]d) n, generate_series(1, 5) i;
		UPDATE rate_limiter.version SET version = 1; COMMIT; ANALYZE`, tenants))
	if err != nil {
		b.Fatal(err)
	}
}

// heap returns the number of bytes in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
