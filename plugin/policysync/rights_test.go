package policysync_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policysync"
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
	if left := value[int](w, `SELECT count(*) FROM rate_limiter.nodes`); left != 0 {
		t.Errorf("%d nodes remain after it has ended", left)
	}
}

// Any role that connects may notify the nodes. A notification is only a hint: nodes read the version themselves.
func TestAForgedNotificationChangesNothing(t *testing.T) {
	server := pgtest.Granted(t)
	w := &world{t, server.RoleDSN(pgtest.Node), pgtest.Pool(t, server.DSN("ratelimit"))}
	n := start(t, w.options())
	n.await(w.policies(1, 1))
	forger := pgtest.Pool(t, server.RoleDSN(pgtest.Keeper))
	for _, payload := range []string{"999999", "-1", "", "no number"} {
		if _, err := forger.Exec(t.Context(), `SELECT pg_notify('rate_limiter_changes', $1)`, payload); err != nil {
			t.Fatal(err)
		}
	}
	n.await(w.policies(2, 2))
	if stats := n.Stats(); stats.Version != 2 || n.Snapshot().Version() != 2 {
		t.Errorf("the node enforces version %d, want the 2 of the database", stats.Version)
	}
}
