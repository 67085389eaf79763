package quota_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pools "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// marks are records that can be lost.
type marks struct {
	sync.Mutex
	kept map[string]string
}

func (m *marks) Get(_ context.Context, key string) ([]byte, error) {
	m.Lock()
	defer m.Unlock()
	if mark, ok := m.kept[key]; ok {
		return []byte(mark), nil
	}
	return nil, nil
}

func (m *marks) Swap(ctx context.Context, key string, old, next []byte, _ time.Duration) ([]byte, error) {
	before, err := m.Get(ctx, key)
	if string(before) == string(old) {
		m.kept[key] = string(next)
	}
	return before, err
}

// lossy is a world with a watcher that restores counts, whose buckets and marks can be lost. The windows of its limits
// are days that have begun six to seven hours ago.
type lossy struct {
	*world
	marks *marks
}

func newLossy(t *testing.T, limits ...schema.Limit) *lossy {
	w := &lossy{newWorld(t, limits...), &marks{}}
	w.clock = time.Now()
	w.byCalendar()
	w.lose()
	w.watcher = w.newWatcher()
	w.restored()
	w.restored() // nothing was used, and there are marks
	return w
}

func (w *lossy) newWatcher() *quota.Watcher {
	o := w.options()
	o.Restore = []*quota.Restore{{History: rows.New(w.pool), Marks: w.marks, Number: 3, Raise: w.raise}}
	return quota.NewWatcher(o)
}

// byCalendar makes the windows of all limits days of a zone that is five hours behind UTC.
func (w *lossy) byCalendar() {
	w.inPeriods(calendar.Day, calendar.Anchor{Hour: w.clock.UTC().Add(-11 * time.Hour).Hour()}, "Etc/GMT+5")
}

// lose loses the buckets and the marks, and empty only the buckets.
func (w *lossy) lose() {
	w.empty()
	w.marks.kept = map[string]string{}
}

func (w *lossy) empty() {
	w.buckets = w.newStore()
}

func (w *lossy) newStore() store.Store {
	return memory.New(memory.Options{Now: func() limit.Micros { return limit.Micros(w.clock.UnixMicro()) }})
}

// raise raises buckets as package redis does.
func (w *lossy) raise(ctx context.Context, bounds []policy.Bound, least []int64) (charged []int64, err error) {
	for i, b := range bounds {
		b.Cost = 0
		one, statuses := []policy.Bound{b}, make([]decision.Status, 1)
		require.NoError(w, w.buckets.Peek(ctx, one, statuses))
		missing := max(0, least[i]-statuses[0].Used)
		statuses[0].Charged = true
		require.NoError(w, w.buckets.Settle(ctx, one, statuses, []int64{missing}))
		charged = append(charged, missing)
	}
	return charged, nil
}

// restored leads once, and returns what is used of the buckets of tenants.
func (w *lossy) restored(tenants ...string) string {
	w.Helper()
	_, err := w.lead(true)
	require.NoError(w, err)
	var all []string
	for _, tenant := range tenants {
		r := w.bounds(tenant, "a", 1)
		statuses := make([]decision.Status, len(r.Bounds))
		require.NoError(w, w.buckets.Peek(w.Context(), r.Bounds, statuses))
		for i := range statuses {
			all = append(all, fmt.Sprintf("%s %s %d", tenant, r.Bounds[i].Policy.Name, statuses[i].Used))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (w *lossy) wantCounts(what, want string) {
	w.Helper()
	assert.Equal(w, want, w.restored("acme", "globex"), "%s: the counts", what)
}

func TestCountsOfPeriodsAreRestoredOnceRedisHasLostThem(t *testing.T) {
	w := newLossy(t, daily(100))
	w.spend("acme", "a", 10, 12*time.Hour) // in the period before
	w.empty()
	w.spend("acme", "a", 60, 5*time.Hour)
	w.spend("globex", "b", 30, 0)
	w.wantCounts("before", "acme daily 60, globex daily 30")
	w.lose()
	w.spend("acme", "a", 5, 0)
	w.wantCounts("at once", "acme daily 5, globex daily 0")
	w.wantCounts("the next check", "acme daily 65, globex daily 30")
	assert.Contains(t, w.log.String(), "buckets=2 tokens=90")
	assert.EqualValues(t, 2, w.watcher.Stats().Restored)

	// What a node reports late is restored a minute later, and nothing after that.
	late := w.buckets
	w.lose()
	w.spend("acme", "a", 20, time.Minute)
	w.buckets = late
	w.marks.kept = map[string]string{"periods.0": "1", "periods.1": "1", "periods.2": "1"}
	w.wantCounts("a minute later", "acme daily 85, globex daily 30")
	assert.Equal(t, []string{"restored", "restored", "restored"}, slices.Collect(maps.Values(w.marks.kept)))
	w.empty()
	w.wantCounts("with its marks", "acme daily 0, globex daily 0")
}

// A tenant spends all of its quota around a loss. Nodes have not reported the last 3 tokens before it.
func TestWhatIsAdmittedAroundALossExceedsTheLimitByWhatWasNotReported(t *testing.T) {
	w := newLossy(t, daily(100))
	w.spend("acme", "a", 70, 0)
	w.restored()
	unreported := w.bounds("acme", "a", 3)
	require.NoError(t, w.buckets.Take(t.Context(), unreported.Bounds, make([]decision.Status, 1)))
	w.lose()
	w.spend("acme", "a", 10, 0)
	w.wantCounts("at once", "acme daily 10, globex daily 0")
	admitted := 70 + 3 + 10
	w.wantCounts("restored", "acme daily 80, globex daily 0")
	for one := w.bounds("acme", "a", 1); ; admitted++ {
		statuses := make([]decision.Status, 1)
		require.NoError(t, w.buckets.Take(t.Context(), one.Bounds, statuses))
		if !statuses[0].Admits() {
			break
		}
	}
	assert.Equal(t, 100+3, admitted)
}

func TestAResetIsRespectedAndACountThatIsHigherStays(t *testing.T) {
	w := newLossy(t, daily(100))
	w.spend("acme", "a", 60, 5*time.Hour)
	w.spend("acme", "a", 7, time.Hour)
	w.spend("globex", "a", 60, time.Hour)
	w.exec(`SELECT rate_limiter.record_action('reset', 'buckets', 'acme', '{"buckets": [{"policy": "daily"}]}'),
		rate_limiter.record_action('reset', 'buckets', 'globex', '{"buckets": [{"policy": "daily", "user": "u"}]}')`)
	w.exec(`ALTER TABLE rate_limiter.audit DISABLE TRIGGER audit_stays`)
	w.exec(`UPDATE rate_limiter.audit SET at = now() - interval '2 hours'`)
	w.lose()
	w.spend("globex", "a", 70, 12*time.Hour) // the bucket has them; the period's history has not
	w.restored()
	w.wantCounts("restored", "acme daily 7, globex daily 70")
}

func TestAnotherLeaderGoesOnWithARestoration(t *testing.T) {
	w := newLossy(t, daily(100))
	w.spend("acme", "a", 60, 0)
	w.spend("globex", "a", 6, 0)
	w.restored()
	w.lose()
	w.restored()
	w.watcher = w.newWatcher()
	w.wantCounts("another leader, first", "acme daily 0, globex daily 0")
	w.unavailable = "acme"
	_, _ = w.lead(true)
	assert.Contains(t, w.log.String(), "cannot be restored")
	w.unavailable = ""
	w.wantCounts("another leader", "acme daily 60, globex daily 6")
	delete(w.marks.kept, "periods.1") // one server of a cluster
	w.empty()
	w.restored()
	w.wantCounts("of one server", "acme daily 60, globex daily 6")
}

// The policy of a tier counts in the bucket of the tier that the tenant had before. Limits of users, and rolling ones,
// are not restored, and neither are those of other namespaces.
func TestWhatIsRestoredBelongsToTheBucket(t *testing.T) {
	w := newLossy(t, daily(100), daily(100, func(l *schema.Limit) { l.Name, l.Scope = "own", "user" }))
	twoTiers(w.world, "")
	w.byCalendar()
	w.tiers["acme"] = "basic"
	w.spend("acme", "a", 60, 0)
	w.unreported([]usage.Row{{
		Key: usage.Key{Tenant: "globex", Policy: "daily/other/basic"}, Counts: usage.Counts{Admitted: 1, Cost: 50},
	}}, 0)
	w.tiers["acme"] = "pro"
	w.spend("acme", "a", 6, 0)
	w.lose()
	w.restored()
	w.wantCounts("after a change of the tier", "acme daily 66, globex daily 0")
}

// deadMarks are marks in a pool that does not answer.
type deadMarks struct{ quota.Marks }

func (deadMarks) Get(context.Context, string) ([]byte, error) { return nil, errUnavailable }

// Consumers of acme have tiers in two pools. One of these has lost its data, the other does not answer.
func TestEachPoolIsRestoredByItself(t *testing.T) {
	w := newLossy(t, daily(100))
	twoTiers(w.world, "big")
	w.byCalendar()
	kept := w.newStore()
	w.buckets = pools.Route([]store.Store{kept, w.newStore()})
	w.tiers["acme"] = "basic pro"
	w.spend("acme", "a", 60, 0)
	w.tiers["acme"] = "pro basic"
	w.spend("acme", "a", 6, 0)
	restored := &quota.Restore{Marks: w.marks, Number: 1, Pool: 1, Name: "big"}
	dead := &quota.Restore{Marks: deadMarks{}, Number: 1, Name: "default"}
	o := w.options()
	for _, r := range []*quota.Restore{dead, restored} {
		r.History, r.Raise = rows.New(w.pool), w.raise
		o.Restore = append(o.Restore, r)
	}
	w.watcher = quota.NewWatcher(o)
	w.lose()
	w.buckets = pools.Route([]store.Store{kept, w.newStore()})
	assert.Equal(t, "acme daily 0", w.restored("acme"))
	assert.Equal(t, "acme daily 6", w.restored("acme"), "restored")
	assert.Equal(t, map[string]string{"periods.big.0": w.marks.kept["periods.big.0"]}, w.marks.kept)
	assert.Contains(t, w.log.String(), "pool=big buckets=1 tokens=6")
	assert.Contains(t, w.log.String(), "pool default: connection refused")
	w.tiers["acme"] = "basic pro"
	assert.Equal(t, "acme daily 60", w.restored("acme"), "in the other pool")
}
