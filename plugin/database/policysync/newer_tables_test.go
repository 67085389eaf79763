package policysync_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestANodeOnNewerTablesLogsThatOnceAndFollowsThem(t *testing.T) {
	w := newWorld(t)
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.migrations (version_id, is_applied)
		VALUES (9000, true)`); err != nil {
		t.Fatal(err)
	}
	n := start(t, w.options())
	n.await(w.policies(1, 1))
	const newer = "newer than this program (migration 9000"
	if got := n.log.count(newer); got != 1 {
		t.Errorf("%d lines mention newer tables, want 1:\n%s", got, n.log)
	}
	_, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE pid <> pg_backend_pid() AND datname = current_database()`)
	require.NoError(t, err)
	n.await(w.policies(2, 2))
	if got := n.log.count(newer); got != 1 {
		t.Errorf("after a reconnect %d lines mention newer tables, want 1:\n%s", got, n.log)
	}
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
		strings.Count(text, "newer than this program") < 2 {
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
		strings.Count(text, "newer than this program") < 2 {
		t.Errorf("want the tables called newer in\n%s", text)
	}
}

func TestANodeOnTablesFromBeforeTheFirstReleaseFollowsNothingAndSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	w.write(`ALTER TABLE rate_limiter.policies ADD COLUMN slot text NOT NULL DEFAULT 'active'`)
	n := start(t, w.options())
	const advice = "run DROP SCHEMA rate_limiter CASCADE"
	n.until("the error is logged", func(policysync.Stats) bool { return n.log.count(advice) > 0 })
	s := n.Snapshot()
	assert.Nil(t, s, "version %d of the rows is in force, want none", s.Version())
}
