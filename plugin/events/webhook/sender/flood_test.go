package sender

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestABacklogOfOneTenantDoesNotDelayTheDeliveriesOfAnother(t *testing.T) {
	w := newWorld(t)
	unread := int64(-1)
	fast := w.newReceiver(func(to http.ResponseWriter, _ *http.Request) {
		if err := w.pool.QueryRow(t.Context(), `SELECT s.last - c.position FROM rate_limiter.outbox_state s,
			rate_limiter.outbox_cursors c WHERE c.consumer = $1`, Consumer).Scan(&unread); err != nil {
			t.Error(err)
		}
		to.WriteHeader(200)
	})
	flooded := w.newReceiver(status(200))
	w.subscribe("fast", fast.URL)
	w.subscribe("flooded", flooded.URL)
	w.happen("fast", 1)
	w.happen("flooded", 3*maxRead)
	w.work()
	w.want(fast, 1)
	if unread != 3*maxRead+1-maxRead {
		t.Errorf("the delivery was sent with %d events unread, want it after the first %d", unread, maxRead)
	}
}

func TestAFloodOfDenialsLeavesRoomForNotices(t *testing.T) {
	w := newWorld(t)
	_, id := w.subscribe("acme", w.newReceiver(status(200)).URL)
	pgtest.Exec(t, w.pool, `INSERT INTO rate_limiter.webhook_deliveries
			(id, webhook, events, body, created_at, due_at)
		SELECT 'msg_' || n, $1, 100, '[]', $2, $2::timestamptz + interval '1 day' FROM generate_series(1, $3) n`,
		id, w.clock(), maxDenials)
	pgtest.Exec(t, w.pool, `SELECT rate_limiter.report_denials('edge',
		'[{"event": "a-1", "at": "2026-11-22T14:20:07Z", "tenant": "acme", "data": {}}]')`)
	w.happen("acme", 3)
	_, err := w.session.enqueue(t.Context())
	require.NoError(t, err)
	if hook := w.hook(id); hook.Dropped != 1 || hook.Waiting != maxDenials+1 {
		t.Errorf("dropped %d and waiting %d, want the denial, and %d with the notices", hook.Dropped, hook.Waiting,
			maxDenials+1)
	}
}

// scansIn returns how often the session has scanned the denials that wait, whole or by tenant.
func scansIn(t *testing.T, tx pgx.Tx) (scans int) {
	t.Helper()
	err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('rate_limiter.webhook_denials'::regclass)
		+ pg_stat_get_xact_numscans('rate_limiter.webhook_denials_tenant'::regclass)`).Scan(&scans)
	require.NoError(t, err)
	return scans
}

func TestAReportOfDenialsCountsThoseThatWaitOnceForEachTenant(t *testing.T) {
	w := newWorld(t)
	w.subscribe("", w.newReceiver(status(200)).URL)
	const perTenant = 100
	report := func(first, tenants int) (kept, scans int) {
		t.Helper()
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }() // it fails after the commit
		before := scansIn(t, tx)
		if err = tx.QueryRow(t.Context(), `SELECT kept FROM rate_limiter.report_denials('edge', (
				SELECT json_agg(json_build_object('event', 'e-' || tenant || '-' || n, 'at', now(), 'tenant', 'org-' || tenant,
					'data', '{}'::json))
				FROM generate_series(1, $2::int) tenant, generate_series($1::int, $1::int + $3::int - 1) n))`,
			first, tenants, perTenant).Scan(&kept); err != nil {
			t.Fatal(err)
		}
		scans = scansIn(t, tx) - before
		require.NoError(t, tx.Commit(t.Context()))
		return kept, scans
	}
	for i, tenants := range []int{1, 3, 6} {
		const fixed = 3 // whether too many wait, and which of the report wait already
		kept, scans := report(1+i*perTenant, tenants)
		if kept != tenants*perTenant || scans > tenants+fixed {
			t.Errorf("a report of %d tenants keeps %d denials in %d scans, want %d in at most %d",
				tenants, kept, scans, tenants*perTenant, tenants+fixed)
		}
	}
}

func TestADenialWithAnInfiniteTimeIsLeftOutAndTheOthersArrive(t *testing.T) {
	w := newGrantedWorld(t)
	r := w.newReceiver(status(200))
	w.subscribe("acme", r.URL)
	node := pgtest.Pool(t, w.granted.RoleDSN(pgtest.Node))
	for i, at := range []string{"infinity", "-infinity", "4713-01-01 BC", "2026-11-22T14:20:07Z", "294276-01-01"} {
		text := fmt.Sprintf(`[{"event": "a-%d", "at": %q, "tenant": "acme", "data": {}}]`, i, at)
		pgtest.Exec(t, node, `SELECT rate_limiter.report_denials('edge', $1)`, text)
	}
	w.work()
	if got := w.want(r, 1)[0].events; len(got) != 1 || got[0].ID != "a-3" {
		t.Errorf("arrived: %+v, want the denial with a time", got)
	}
}

func TestTheDeliveriesOfOneReadAreMadeInItsOrder(t *testing.T) {
	w := newWorld(t)
	r := w.newReceiver(status(200))
	w.subscribe("acme", r.URL)
	w.happen("acme", maxRead)
	_, err := w.session.enqueue(t.Context())
	require.NoError(t, err)
	// The rows are now in another order in the table, as in the room of deleted ones.
	const shuffle = `CLUSTER rate_limiter.webhook_deliveries USING webhook_deliveries_pkey`
	pgtest.Exec(t, w.pool, shuffle)
	w.work()
	next := 1
	for _, m := range w.want(r, maxRead/maxEvents) {
		for _, e := range m.events {
			require.Equal(t, fmt.Sprint("notice-", next), e.ID)
			next++
		}
	}
}
