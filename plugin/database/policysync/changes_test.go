package policysync_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
)

func TestChangeIsInForceWithinASecondOfItsCommit(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.PollEvery = 0 // the default
	n := start(t, options)
	n.await(w.policies(1, 1000))
	const changes = 20
	took := make([]time.Duration, 0, changes)
	var last time.Duration // of the last change, from before its write
	for i := range changes {
		began := time.Now()
		version := w.write(`UPDATE rate_limiter.policies SET "limit" = $1 WHERE tenant = $2`, i+5000,
			fmt.Sprint("tenant-", i%1000+1))
		committed := time.Now()
		var at time.Time
		n.until(fmt.Sprintf("version %d is in force", version), func(policysync.Stats) (ok bool) {
			at, ok = n.swapped(version) // recorded just after it is in force
			return ok
		})
		took, last = append(took, max(0, at.Sub(committed))), at.Sub(began)
	}
	slices.Sort(took)
	t.Logf("commit to snapshot, %d changes: median %v, longest %v", changes, took[changes/2], took[changes-1])
	if most := took[changes*9/10]; most > time.Second {
		t.Errorf("90 %% of the policy changes are in force within %v, want 1s", most)
	}
	// The clocks are compared by a round trip, which is a part of the time.
	if s := n.Stats(); s.Loads != 1 || s.Propagation <= 0 || s.Propagation > 2*last {
		t.Errorf("%d loads, want only the first; the last change took %v of %v", s.Loads, s.Propagation, last)
	}
}

func TestTenThousandChangesInOneTransactionAreFetchedWithoutALoad(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	n.await(w.policies(1, 100))
	snapshot := n.await(w.policies(101, 10_100))
	assert.EqualValues(t, 10_100, snapshot.Len(), "the snapshot has rows")
	snapshot = n.await(w.write(`DELETE FROM rate_limiter.policies WHERE "limit" % 2 = 0`))
	assert.EqualValues(t, 5050, snapshot.Len(), "after half of them are deleted the snapshot has rows")
	assert.EqualValues(t, 1, n.Stats().Loads)
}

func TestALostConnectionLosesNoChange(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.MinPause, options.MaxPause = 400*time.Millisecond, 400*time.Millisecond // longer than the commit takes
	n := start(t, options)
	n.await(w.policies(1, 3))
	ctx := context.Background()
	tx, err := w.pool.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `UPDATE rate_limiter.policies SET "limit" = 7`)
	require.NoError(t, err)
	cut := value[int64](w, `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'tenant-rate-limiting'`)
	require.EqualValues(t, 1, cut, "connections were cut off")
	require.NoError(t, tx.Commit(ctx))
	snapshot := n.await(value[int64](w, `SELECT version FROM rate_limiter.version`))
	assert.EqualValues(t, 7, limits(snapshot)["tenant-1"], "the limit")
	n.until("there is another session", func(s policysync.Stats) bool { return s.Contacts >= 2 })
	assert.EqualValues(t, 1, n.Stats().Loads)
}

func TestChangeWhileANodeStartsIsNotMissed(t *testing.T) {
	w := newWorld(t)
	w.policies(1, 500)
	for i := range 10 {
		n := start(t, w.options())
		var version int64
		for j := range 10 {
			version = w.write(`UPDATE rate_limiter.policies SET "limit" = $1 WHERE tenant = 'tenant-1'`, i*10+j+1)
		}
		assert.EqualValues(t, int64(i*10+10), limits(n.await(version))["tenant-1"], "start %d: the limit", i)
		n.stop()
	}
}

func TestRowWrittenWithoutTriggersArrivesWithTheNextLoad(t *testing.T) {
	w := newWorld(t)
	options := w.options()
	options.ReloadEvery = 50 * time.Millisecond
	n := start(t, options)
	n.await(w.policies(1, 3))
	w.write(`SET LOCAL session_replication_role = replica; UPDATE rate_limiter.policies SET "limit" = 77`)
	n.until("the row is found", func(policysync.Stats) bool { return limits(n.Snapshot())["tenant-2"] == 77 })
}

func TestNodeBehindThePrunedChangesLoadsAllRows(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	n.await(w.policies(1, 3))
	snapshot := n.await(w.write(`UPDATE rate_limiter.policies SET "limit" = 9;
		DELETE FROM rate_limiter.changes; UPDATE rate_limiter.version SET pruned = version`))
	if got, loads := limits(snapshot)["tenant-1"], n.Stats().Loads; got != 9 || loads != 2 {
		t.Errorf("limit %d after %d loads, want 9 after 2", got, loads)
	}
}

func TestDatabaseWithAnotherHistoryIsLoadedAgain(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	w.policies(1, 3)
	n.await(w.policies(4, 6))
	w.write(`SET LOCAL session_replication_role = replica;
		DELETE FROM rate_limiter.policies WHERE tenant > 'tenant-2'; UPDATE rate_limiter.version SET version = 1`)
	n.until("the earlier version is in force", func(s policysync.Stats) bool { return s.Version == 1 })
	assert.EqualValues(t, 2, n.Snapshot().Len(), "the snapshot has rows")
	w.write(`SET LOCAL session_replication_role = replica;
		DELETE FROM rate_limiter.policies; UPDATE rate_limiter.version SET at = clock_timestamp()`)
	n.until("the other version 1 is in force", func(policysync.Stats) bool { return n.Snapshot().Len() == 0 })
}

func TestExpiredOverridesAreNotInTheSnapshot(t *testing.T) {
	w := newWorld(t)
	w.write(`INSERT INTO rate_limiter.overrides (kind, tenant, reason, author, created_at, expires_at, permanent)
			VALUES ('ban', 'over', 'why', 'ann', now() - interval '2h', now() - interval '1h', false),
				('ban', 'soon', 'why', 'ann', now(), now() + interval '1h', false),
				('exempt', 'always', 'why', 'ann', now(), NULL, true)`)
	n := start(t, w.options())
	snapshot := n.await(1)
	check := func(when string, banned ...string) {
		t.Helper()
		var tenants []string
		for o := range snapshot.Overrides() {
			tenants = append(tenants, o.Tenant)
			if ends := o.Tenant == "soon"; ends == o.Permanent || ends == o.ExpiresAt.IsZero() {
				t.Errorf("%s: the override of %s ends at %v", when, o.Tenant, o.ExpiresAt)
			}
		}
		if slices.Sort(tenants); !slices.Equal(tenants, banned) {
			t.Errorf("%s: overrides of %v, want %v", when, tenants, banned)
		}
	}
	check("after the load", "always", "soon")
	snapshot = n.await(w.write(`UPDATE rate_limiter.overrides SET created_at = now() - interval '2h', expires_at = now() - interval '1h'
		WHERE tenant = 'soon'`))
	check("after a change", "always")
}

// Random changes of all kinds: a snapshot that followed them equals one that was loaded after them.
func TestSnapshotThatFollowedChangesEqualsOneThatWasLoaded(t *testing.T) {
	w := newWorld(t)
	n := start(t, w.options())
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 6 {
		var version int64
		for range 25 {
			version = w.write(randomChange(random))
		}
		followed := n.await(version)
		loaded := start(t, w.options())
		if got, want := contents(followed), contents(loaded.await(version)); !slices.Equal(got, want) {
			t.Fatalf("round %d, version %d: the snapshot that followed differs:\n%v\nwant\n%v", round, version, got, want)
		}
		loaded.stop()
	}
	if s := n.Stats(); s.Loads != 1 || s.Rows < 20 {
		t.Errorf("%d loads and %d rows: this compared nothing", s.Loads, s.Rows)
	}
}

var serial atomic.Int64

// randomChange returns a transaction of one to three changes.
func randomChange(random *rand.Rand) string {
	text := ""
	for range 1 + random.IntN(3) {
		tenant, n := fmt.Sprint("t", random.IntN(12)), serial.Add(1)
		text += [...]string{
			fmt.Sprintf(`INSERT INTO rate_limiter.tiers VALUES ('tier-%d') ON CONFLICT DO NOTHING;`, n%5),
			fmt.Sprintf(`DELETE FROM rate_limiter.tiers WHERE name = 'tier-%d';`, random.IntN(5)),
			fmt.Sprintf(`INSERT INTO rate_limiter.tenants (id, tier) VALUES ('%s', 'tier-%d') ON CONFLICT (id) DO UPDATE
				SET tier = excluded.tier;`, tenant, n%5),
			fmt.Sprintf(`UPDATE rate_limiter.tenants SET id = 'moved-%d', time_zone = 'Europe/Vienna' WHERE id = '%s';`, n,
				tenant),
			fmt.Sprintf(`DELETE FROM rate_limiter.tenants WHERE id = '%s';`, tenant),
			fmt.Sprintf(`INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size, cost)
				VALUES ('p%d', '%s', 'user', %d, 60, %d);`, n, tenant, n, n%2),
			fmt.Sprintf(`INSERT INTO rate_limiter.policies 
				(name, tier, scope, endpoint, "limit", window_size, fail_mode, accuracy)
				VALUES ('p%d', 'tier-1', 'tenant+endpoint', 'GET /r/{id}', 5, 60, 'local', 'exact');`, n),
			fmt.Sprintf(`UPDATE rate_limiter.policies SET "limit" = "limit" + 1, mode = 'shadow' WHERE tenant = '%s';`, tenant),
			fmt.Sprintf(`UPDATE rate_limiter.policies SET tenant = 'moved' || %d WHERE tenant = '%s' AND id %% 3 = 0;`, n,
				tenant),
			fmt.Sprintf(`DELETE FROM rate_limiter.policies WHERE tenant = '%s' AND id %% 2 = 0;`, tenant),
			fmt.Sprintf(`INSERT INTO rate_limiter.overrides (kind, tenant, "user", factor, reason, author, permanent)
				VALUES ('multiplier', '%s', 'u%d', 500, 'why', 'ann', true);`, tenant, n),
			fmt.Sprintf(`INSERT INTO rate_limiter.overrides (kind, ip, reason, author, expires_at)
				VALUES ('ban', '10.0.%d.%d', 'why', 'ann', now() + interval '1 day');`, n/250, n%250),
			fmt.Sprintf(`DELETE FROM rate_limiter.overrides WHERE tenant = '%s' AND id %% 2 = 0;`, tenant),
			fmt.Sprintf(`INSERT INTO rate_limiter.costs (endpoint, cost) VALUES ('GET /%d', %d);`, n, n%3),
			`UPDATE rate_limiter.costs SET cost = cost + 1 WHERE id % 2 = 0;`,
			`DELETE FROM rate_limiter.costs WHERE id % 3 = 0;`,
			fmt.Sprintf(`INSERT INTO rate_limiter.prices (model, prompt, completion) VALUES ('m%d*', %d, 0);`, n%9, n),
			`UPDATE rate_limiter.prices SET completion = completion + 1 WHERE id % 2 = 0;`,
			`DELETE FROM rate_limiter.prices WHERE id % 3 = 0;`,
		}[random.IntN(19)]
	}
	return text
}

// contents returns the rows of a snapshot as sorted texts.
func contents(snapshot *policy.Snapshot) []string {
	var all []string
	for _, r := range snapshot.Tiers() {
		all = append(all, fmt.Sprintf("tier %+v", r))
	}
	for r := range snapshot.Tenants() {
		all = append(all, fmt.Sprintf("tenant %+v", r))
	}
	for r := range snapshot.Policies() {
		cost := int64(-1)
		if r.Limit.Cost != nil {
			cost = *r.Limit.Cost
		}
		r.Limit.Cost = nil
		all = append(all, fmt.Sprintf("policy %+v cost %d", r, cost))
	}
	for o := range snapshot.Overrides() {
		all = append(all, fmt.Sprintf("override %+v", o))
	}
	for _, c := range snapshot.Costs() {
		all = append(all, fmt.Sprintf("cost %d of %s: %d", c.ID, c.Endpoint, *c.Cost.Cost))
	}
	for p := range snapshot.Prices() {
		all = append(all, fmt.Sprintf("price %d of %s: %s, %s from %s", p.ID, p.Model, p.Prompt, p.Completion, p.StartsAt))
	}
	slices.Sort(all)
	return all
}
