package addresses

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const minute = 60 * limit.Second

// world is a budget in front of a store that records which buckets were taken from.
type world struct {
	t      testing.TB
	clock  *storetest.ManualClock
	budget *Budget
	view   *Store
	shared *memory.Store
	here   *here
	takes  map[policy.Key]int // how often each was
}

func newWorld(t testing.TB, most, rate int) *world {
	clock := storetest.NewClock()
	w := &world{t: t, clock: clock, takes: map[policy.Key]int{}}
	w.shared = memory.New(memory.Options{Now: clock.Now})
	w.here = &here{Store: memory.New(memory.Options{Now: clock.Now})}
	w.budget = New(Options{Now: clock.Now, Most: most, Rate: rate})
	w.view = w.budget.Store(kept{w.shared, w}, w.here)
	return w
}

// kept is the central store, which records which buckets were taken from.
type kept struct {
	*memory.Store
	world *world
}

// Take implements store.Store.
func (k kept) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range bounds {
		k.world.takes[bounds[i].Key]++
	}
	err := k.Store.Take(ctx, bounds, statuses)
	for i := range statuses {
		statuses[i].Source = decision.Redis
	}
	return err
}

// Peek implements store.Store.
func (k kept) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := k.Store.Peek(ctx, bounds, statuses)
	for i := range statuses {
		statuses[i].Source = decision.Redis
	}
	return err
}

// here are the buckets of this process, whose shares are whole limits.
type here struct{ *memory.Store }

// Take implements store.Store.
func (h *here) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := h.Store.Take(ctx, bounds, statuses)
	for i := range statuses {
		statuses[i].Source = decision.Local
	}
	return err
}

// Peek implements store.Store.
func (h *here) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	err := h.Store.Peek(ctx, bounds, statuses)
	for i := range statuses {
		statuses[i].Source = decision.Local
	}
	return err
}

func policyOf(t testing.TB, name string, spec limit.Spec) *policy.Policy {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err)
	return &policy.Policy{Name: name, Limit: l}
}

func perMinute(t testing.TB, n int64) *policy.Policy {
	t.Helper()
	return policyOf(t, "minute", limit.Spec{Algorithm: limit.FixedWindow, Quantity: n, Window: minute})
}

func ofAddress(p *policy.Policy, address string) policy.Bound {
	return policy.Bound{
		Policy: p,
		Key:    policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByIP, GroupID: address}, Cost: 1,
	}
}

func ofTenant(p *policy.Policy, name string) policy.Bound {
	return policy.Bound{
		Policy: p,
		Key:    policy.Key{Namespace: "default", Policy: p.Name, Group: policy.ByTenant, GroupID: name}, Cost: 1,
	}
}

// take takes bounds, and returns their statuses and whether the request is admitted.
func (w *world) take(bounds ...policy.Bound) (statuses []decision.Status, admitted bool) {
	w.t.Helper()
	statuses = make([]decision.Status, len(bounds))
	require.NoError(w.t, w.view.Take(context.Background(), bounds, statuses))
	for i := range bounds {
		if decision.Denies(&bounds[i], &statuses[i]) {
			return statuses, false
		}
	}
	return statuses, true
}

// subjects returns how often the buckets of each subject were taken from.
func (w *world) subjects() map[string]int {
	all := map[string]int{}
	for key, n := range w.takes {
		all[key.GroupID] += n
	}
	return all
}
