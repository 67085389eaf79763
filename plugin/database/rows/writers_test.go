package rows_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// addOne reads a policy, adds one to its limit and writes it. After a conflict it starts again.
func addOne(t *testing.T, s *rows.DB, id int64) error {
	for {
		p, err := rows.Read[rows.Policy](t.Context(), s, id)
		if err != nil {
			return err
		}
		p.Limit.Limit++
		_, _, err = s.PutPolicyByID(t.Context(), ann, p)
		if conflict := new(rows.ConflictError); !errors.As(err, &conflict) {
			return err
		}
	}
}

func TestNoUpdateOfAHundredWritersIsLostAndTheAuditHasNoGaps(t *testing.T) {
	const policies, each = 10, 10 // writers
	s, _ := open(t)
	var all errgroup.Group
	for _, p := range named("a", "b", "c", "d", "e", "f", "g", "h", "i", "j") {
		p, _ = put(t, s, p)
		for range each {
			all.Go(func() error { return addOne(t, s, p.ID) })
		}
	}
	require.NoError(t, all.Wait())
	list, err := s.Policies(t.Context(), rows.PolicyFilter{})
	if err != nil || len(list) != policies {
		t.Fatalf("the policies are %v (%v)", list, err)
	}
	for _, p := range list {
		if p.Limit.Limit != daily().Limit.Limit+each || p.Revision != 1+each {
			t.Errorf("%s has limit %d in revision %d, want that of %d updates", p.Name, p.Limit.Limit, p.Revision, each)
		}
	}
	const writes = policies + policies*each
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Max: 2 * writes})
	if err != nil || len(entries) != writes {
		t.Fatalf("the audit has %d entries (%v), want one for each of %d writes", len(entries), err, writes)
	}
	for i, e := range entries {
		assert.Equal(t, int64(writes-i), e.Version, "entry %d is of version", e.ID)
		checkStep(t, e)
	}
}

// checkStep checks that an entry adds one to a limit and to its revision.
func checkStep(t *testing.T, e rows.AuditEntry) {
	t.Helper()
	if e.Operation == "insert" {
		return
	}
	var before, after struct{ Limit, Revision int64 }
	require.NoError(t, errors.Join(json.Unmarshal(e.Before, &before), json.Unmarshal(e.After, &after)))
	if after.Limit != before.Limit+1 || after.Revision != before.Revision+1 {
		t.Errorf("entry %d has %+v before and %+v after", e.ID, before, after)
	}
}

func TestAWriteThatEndsHalfWayWritesNothing(t *testing.T) {
	for name, die := range map[string]func(*testing.T, *pgxpool.Pool, context.CancelFunc){
		"the caller ends":       func(_ *testing.T, _ *pgxpool.Pool, cancel context.CancelFunc) { cancel() },
		"the connection is cut": func(t *testing.T, pool *pgxpool.Pool, _ context.CancelFunc) { cut(t, pool) },
		"both": func(t *testing.T, pool *pgxpool.Pool, cancel context.CancelFunc) {
			cut(t, pool)
			cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, pool := open(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			// The stored answer is the last statement of a write. This lock stops the write just before it.
			holder, err := pool.Begin(t.Context())
			require.NoError(t, err)
			pgtest.Exec(t, holder, `LOCK TABLE rate_limiter.answers IN EXCLUSIVE MODE`)
			died := make(chan error, 1)
			go func() {
				_, _, err := s.PutPolicy(ctx, once("k", "one"), daily())
				died <- err
			}()
			awaitStopped(t, pool)
			die(t, pool, cancel)
			assert.Error(t, <-died, "the write succeeds")
			require.NoError(t, holder.Rollback(t.Context()))
			if version, entries := versions(t, s); version != 0 || entries != 0 || names(t, s) != "" {
				t.Errorf("version %d, %d audit entries and %q remain", version, entries, names(t, s))
			}
			again := once("k", "one")
			if _, version, err := s.PutPolicy(t.Context(), again, daily()); err != nil || version != 1 ||
				again.Idempotency.Replayed {
				t.Errorf("sent again: version %d (%v), replayed %v", version, err, again.Idempotency.Replayed)
			}
		})
	}
}

// stopped selects the connections that wait for a lock.
const stopped = `FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// awaitStopped returns once a writer waits for a lock.
func awaitStopped(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	await.That(t, "a writer waits", func() (waits bool) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) > 0 `+stopped).Scan(&waits))
		return waits
	})
}

// cut closes the connection of the waiting writer.
func cut(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var ended bool
	if err := pool.QueryRow(t.Context(), `SELECT bool_and(pg_terminate_backend(pid)) `+stopped).Scan(&ended); err != nil ||
		!ended {
		t.Fatalf("the connection cannot be cut: %v", err)
	}
}

func TestANodeThatLocksTheReportsStopsTidyingAndNoWriter(t *testing.T) {
	s, pool := open(t)
	node, err := pool.Begin(t.Context())
	require.NoError(t, err)
	pgtest.Exec(t, node, `LOCK TABLE rate_limiter.nodes`)
	tidied := make(chan error, 1)
	go func() {
		_, err := s.Tidy(t.Context(), rows.DefaultRetention, rows.TidyBatch, func(rows.Tidied) {})
		tidied <- err
	}()
	awaitStopped(t, pool)
	ctx, cancel := context.WithTimeout(t.Context(), await.Longest)
	defer cancel()
	_, _, err = s.PutPolicy(ctx, ann, daily())
	assert.NoError(t, err, "while tidying waits for the reports, a write fails")
	require.NoError(t, node.Rollback(t.Context()))
	assert.NoError(t, <-tidied)
}

// wired returns a store on a pool whose config edit has changed.
func wired(t *testing.T, dsn string, edit func(*pgxpool.Config)) *rows.DB {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	edit(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return rows.New(pool)
}

func TestWaitingWritersLeaveConnectionsToReaders(t *testing.T) {
	const connections = 4
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	s := wired(t, pool.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = connections })
	busy, err := pool.Begin(t.Context()) // a writer with a long transaction
	if err == nil {
		_, err = busy.Exec(t.Context(), `SELECT rate_limiter.await_turn()`)
	}
	require.NoError(t, err)
	var writers errgroup.Group
	for range 2 * connections {
		writers.Go(func() error {
			_, _, err := s.PutPolicy(t.Context(), ann, daily())
			return err
		})
	}
	awaitBlocked(t, pool)
	ctx, cancel := context.WithTimeout(t.Context(), await.Longest)
	defer cancel()
	_, err = s.Policies(ctx, rows.PolicyFilter{})
	assert.NoError(t, err, "want a connection for a reader while writers wait")
	assert.NoError(t, errors.Join(busy.Rollback(t.Context()), writers.Wait()))
}

// awaitBlocked returns once writers wait for the lock of writes.
func awaitBlocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	await.That(t, "two writers wait", func() (wait bool) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) >= 2 `+stopped).Scan(&wait))
		return wait
	})
}
