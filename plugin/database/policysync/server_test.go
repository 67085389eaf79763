package policysync_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestTheGrantsOfTheReadmeSufficeForANode(t *testing.T) {
	server := pgtest.Granted(t)
	w := &world{t, server.RoleDSN(pgtest.Node), pgtest.Pool(t, server.DSN("ratelimit"))}
	n := start(t, w.options())
	n.await(w.policies(1, 3))
	n.await(w.policies(4, 4))
	n.until("it has reported", func(policysync.Stats) bool {
		return value[int](w, `SELECT count(*) FROM rate_limiter.nodes WHERE version = 2`) == 1
	})
	n.stop()
	assert.Zero(t, value[int](w, `SELECT count(*) FROM rate_limiter.nodes`), "nodes remain after it has ended")
}

func TestAStandbyIsFollowedAlsoOnceItIsPromoted(t *testing.T) {
	primary := pgtest.Start(t)
	w := worldOn(t, primary)
	first := w.policies(1, 3)
	standby := primary.Standby(t)
	options := w.options()
	options.Source.DSN = standby.Here(primary, w.dsn)
	options.Dir, options.BeatEvery = t.TempDir(), 10*time.Millisecond
	n := start(t, options)
	n.await(first)
	n.await(w.policies(4, 4))
	if s := n.Stats(); !s.Standby || !s.Connected || n.Snapshot().Len() != 4 {
		t.Errorf("the node has %+v, want four rows of a standby", s)
	}
	if n.log.count("is a standby") != 1 || n.log.count("refused") != 0 || n.log.count("no contact") != 0 {
		t.Errorf("it logs\n%s\nwant one line about the standby", n.log)
	}
	assert.False(t, w.reports("node-1"), "the node has reported")

	w.pool.Close() // so the old primary has no client
	primary.Stop(t)
	standby.Promote(t)
	promoted := &world{t, options.Source.DSN, pgtest.Pool(t, options.Source.DSN)}
	n.until("it follows no standby any more", func(s policysync.Stats) bool { return s.Connected && !s.Standby })
	await.That(promoted, "it reports", func() bool { return promoted.reports("node-1") })
	n.await(promoted.policies(5, 5))
	if n.log.count("no longer a standby") != 1 || n.log.count("no contact") != 0 {
		t.Errorf("it logs\n%s\nwant one line about the promotion", n.log)
	}
}

// The end of a process interrupts the query that runs then, and with it the connection.
func TestANodeThatEndsDuringAQueryRemovesItsReport(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.Node, options.BeatEvery = "busy", 10*time.Millisecond
	n := start(t, options)
	await.That(w, "it reports", func() bool { return w.reports("busy") })
	// A lock holds the next report up, so that the end comes during it. It does not hold up the removal of the report,
	// which would not wait for long.
	lock, err := w.pool.Begin(context.Background())
	require.NoError(t, err)
	_, err = lock.Exec(context.Background(), `SELECT pg_advisory_xact_lock(1)`)
	require.NoError(t, err)
	w.write(`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_xact_lock(1);
			RETURN new;
		END $$;
		CREATE TRIGGER hold BEFORE INSERT ON rate_limiter.nodes FOR EACH ROW EXECUTE FUNCTION hold()`)
	const waiting = `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND datname = current_database()`
	await.That(w, "a report waits for the lock", func() bool { return value[int](w, waiting) > 0 })
	ended := make(chan struct{})
	go func() { n.stop(); close(ended) }()
	await.That(w, "the report is interrupted", func() bool { return value[int](w, waiting) == 0 })
	require.NoError(t, lock.Rollback(context.Background()))
	<-ended
	assert.False(t, w.reports("busy"), "its report is left")
}

func TestANodeThatCannotReadNewerTablesDoesNotCallThemOlder(t *testing.T) {
	w := newWorld(t)
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.migrations (version_id, is_applied)
		VALUES (9000, true);
		ALTER TABLE rate_limiter.nodes RENAME source TO origin;
		ALTER TABLE rate_limiter.policies RENAME mode TO manner`); err != nil {
		t.Fatal(err)
	}
	n := start(t, w.options())
	n.until("the error is logged", func(policysync.Stats) bool {
		return n.log.count("the last good policies stay in force") > 0
	})
	if text := n.log.String(); strings.Contains(text, "older than this program") ||
		!strings.Contains(text, "newer than this program") {
		t.Errorf("want the tables called newer in\n%s", text)
	}
}

func TestADeniedReportToNewerTablesDoesNotCallThemOlder(t *testing.T) {
	w := newWorld(t)
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.migrations (version_id, is_applied)
		VALUES (9000, true);
		ALTER TABLE rate_limiter.nodes RENAME source TO origin`); err != nil {
		t.Fatal(err)
	}
	n := start(t, w.options())
	const denied = "Postgres denied the report of this node"
	n.until("the denied report is logged", func(policysync.Stats) bool { return n.log.count(denied) > 0 })
	if text := n.log.String(); strings.Contains(text, "older than this program") ||
		!strings.Contains(text, "newer than this program") {
		t.Errorf("want the tables called newer in\n%s", text)
	}
}
