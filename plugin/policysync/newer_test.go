package policysync_test

import "testing"

func TestANodeOnNewerTablesSaysSoOnceAndFollowsThem(t *testing.T) {
	w := newWorld(t)
	if _, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.migrations (version_id, is_applied) VALUES (9000, true)`); err != nil {
		t.Fatal(err)
	}
	n := start(t, w.options())
	n.await(w.policies(1, 1))
	const newer = "newer than this program (migration 9000"
	if got := n.log.count(newer); got != 1 {
		t.Errorf("%d lines mention newer tables, want 1:\n%s", got, n.log)
	}
	_, err := w.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()`)
	if err != nil {
		t.Fatal(err)
	}
	n.await(w.policies(2, 2))
	if got := n.log.count(newer); got != 1 {
		t.Errorf("after a reconnect %d lines mention newer tables, want 1:\n%s", got, n.log)
	}
}
