package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Model is the reference store: a simple implementation of store.Store. A bucket changes only when it is spent from or
// refunded, and expires. It is safe for concurrent use.
type Model struct {
	clock   Clock
	place   Place
	mu      sync.Mutex
	now     limit.Micros // of the current request
	buckets map[policy.Key]modelBucket
}

// Place returns the name of the place that keeps a bucket. The bounds of one place are decided together. The
// places decide independently, and the spent bounds are refunded if a place denies.
type Place func(*policy.Key) string

type modelBucket struct {
	state  limit.State
	expiry limit.Micros
}

// NewModel returns an empty model of a store that keeps all buckets in one place.
func NewModel(clock Clock) *Model {
	return &Model{clock: clock, place: samePlace, buckets: map[policy.Key]modelBucket{}}
}

// samePlace is the place of all buckets.
func samePlace(*policy.Key) string { return "" }

// stored returns a copy of the bucket's state, which is empty after its expiry.
func (m *Model) stored(b *policy.Bound) (s limit.State) {
	if bucket := m.buckets[b.Key]; bucket.expiry > m.now {
		s = bucket.state
		s.Log, s.Slots = slices.Clone(s.Log), slices.Clone(s.Slots)
	}
	return s
}

// state returns a copy of the bucket's state, advanced to now.
func (m *Model) state(b *policy.Bound) limit.State {
	s := m.stored(b)
	b.Policy.Limit.Advance(&s, m.now)
	return s
}

// wait returns the time until a bucket can pay cost.
func (m *Model) wait(b *policy.Bound, cost int64) limit.Micros {
	s := m.state(b)
	return b.Policy.Limit.Wait(&s, m.now, cost)
}

// spend spends a bound and marks its status as charged.
func (m *Model) spend(b *policy.Bound, status *decision.Status) {
	if b.Cost <= 0 {
		return
	}
	s, l := m.state(b), &b.Policy.Limit
	status.Charged, status.Receipt = true, l.Acquire(&s, m.now, b.Cost, store.NewSlotID())
	m.buckets[b.Key] = modelBucket{state: s, expiry: l.Expiry(&s, m.now)}
}

// refund refunds a bound that was just spent. The bucket keeps its expiry.
func (m *Model) refund(b *policy.Bound, status *decision.Status) {
	bucket := m.buckets[b.Key]
	bucket.state = m.stored(b) // of its own, because a copy of the model may have the slots too
	b.Policy.Limit.Refund(&bucket.state, m.now, b.Cost, status.Receipt)
	m.buckets[b.Key] = bucket
	status.Charged, status.Receipt = false, limit.Receipt{}
}

// Take implements store.Store.
func (m *Model) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("take", bounds, statuses); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.take(bounds, statuses)
	return nil
}

// Peek implements store.Store: it takes from a copy, and shows the buckets as they are.
func (m *Model) Peek(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek", bounds, statuses); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.buckets
	m.buckets = maps.Clone(kept)
	m.take(bounds, statuses)
	m.buckets = kept
	for i := range statuses {
		statuses[i] = decision.Status{Wait: statuses[i].Wait}
	}
	m.report(bounds, statuses)
	return nil
}

// Settle implements store.Store.
func (m *Model) Settle(
	_ context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	actual, _, err := store.Actuals(bounds, statuses, actual)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.clock.Now()
	for i := range statuses {
		if status := &statuses[i]; status.Charged {
			status.Charged = false
			status.Settled = m.settle(&bounds[i], status.Receipt, actual[i])
		}
	}
	return nil
}

// settle settles a bound, and returns the change in tokens.
func (m *Model) settle(b *policy.Bound, r limit.Receipt, actual int64) int64 {
	s, l := m.stored(b), &b.Policy.Limit
	change := l.Settle(&s, m.now, b.Cost, actual, r)
	switch {
	case change > 0:
		m.buckets[b.Key] = modelBucket{state: s, expiry: l.Expiry(&s, m.now)}
	case change < 0:
		m.buckets[b.Key] = modelBucket{state: s, expiry: m.buckets[b.Key].expiry}
	}
	return l.WholeTokens(change)
}

// Forget implements store.Keeper.
func (m *Model) Forget(_ context.Context, bounds []policy.Bound) (forgotten int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range bounds {
		if b, kept := m.buckets[bounds[i].Key]; kept && b.expiry > m.clock.Now() {
			forgotten++
		}
		delete(m.buckets, bounds[i].Key)
	}
	return forgotten, nil
}

// Slots implements store.Keeper.
func (m *Model) Slots(_ context.Context, bound *policy.Bound, most int) (store.Slots, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, now := m.buckets[bound.Key].state, m.clock.Now()
	return store.Slots{Now: now, Deadlines: state.Deadlines(now, most)}, nil
}

// take decides bounds, and spends them if all admit.
func (m *Model) take(bounds []policy.Bound, statuses []decision.Status) {
	m.now = m.clock.Now()
	clear(statuses)
	denied := m.check(bounds, statuses)
	if len(denied) > 0 {
		m.report(bounds, statuses)
	}
	order := m.spendPlaces(bounds, statuses, denied)
	if len(denied) == 0 {
		m.report(bounds, statuses)
		return
	}
	for _, i := range order {
		m.refund(&bounds[i], &statuses[i])
	}
}

// check fills in the waits of the enforced bounds, and returns the places that deny.
func (m *Model) check(bounds []policy.Bound, statuses []decision.Status) map[string]bool {
	denied := map[string]bool{}
	for i := range bounds {
		if b := &bounds[i]; b.Enforced() && b.Cost > 0 {
			statuses[i].Wait = m.wait(b, demand(bounds[:i+1], b.Key))
			if statuses[i].Wait > 0 {
				denied[m.place(&b.Key)] = true
			}
		}
	}
	return denied
}

// spendPlaces spends the bounds of the places that admit, the enforced ones first, and fills in the waits of the
// others. It returns the spent ones in order.
func (m *Model) spendPlaces(bounds []policy.Bound, statuses []decision.Status, denied map[string]bool) (order []int) {
	spend := func(i int) {
		if m.spend(&bounds[i], &statuses[i]); statuses[i].Charged {
			order = append(order, i)
		}
	}
	if len(denied) > 0 { // a shadow must not count tokens that are refunded
		for i := range bounds {
			if b := &bounds[i]; !b.Enforced() {
				statuses[i].Wait = m.wait(b, b.Cost)
			}
		}
	}
	for i := range bounds {
		if bounds[i].Enforced() && !denied[m.place(&bounds[i].Key)] {
			spend(i)
		}
	}
	for i := range bounds {
		b := &bounds[i]
		if b.Enforced() || denied[m.place(&b.Key)] {
			continue
		}
		wait := m.wait(b, b.Cost)
		if len(denied) == 0 {
			statuses[i].Wait = wait
		}
		if wait == 0 {
			spend(i)
		}
	}
	return order
}

// report fills in the statuses of the buckets.
func (m *Model) report(bounds []policy.Bound, statuses []decision.Status) {
	for i := range bounds {
		s := m.state(&bounds[i])
		statuses[i].Status = bounds[i].Policy.Limit.Status(&s, m.now)
		statuses[i].Now, statuses[i].Source = m.now, decision.Memory
	}
}

// demand returns the total cost of the enforced bounds of one bucket, capped far above any capacity.
func demand(bounds []policy.Bound, key policy.Key) int64 {
	var sum int64
	for i := range bounds {
		if bounds[i].Enforced() && bounds[i].Key == key {
			sum = min(sum+min(bounds[i].Cost, 1<<61), 1<<61)
		}
	}
	return sum
}

// decide is Take or Peek of a store.
type decide func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

// shadowWait returns the wait that a status must have. A denying sliding log in shadow may have a longer wait, because
// it counts the provisional tokens of other bounds. A concurrency limit may have another estimate then.
func shadowWait(b *policy.Bound, got, want *decision.Status) limit.Micros {
	algorithm := b.Policy.Limit.Spec().Algorithm
	switch {
	case b.Enforced() || want.Wait == 0:
	case algorithm == limit.SlidingLog:
		return max(got.Wait, want.Wait)
	case algorithm == limit.Concurrency && got.Wait > 0:
		return got.Wait
	}
	return want.Wait
}

// world is some buckets with their current policies.
type world struct{ bounds []policy.Bound }

// drawWorld draws up to five buckets.
func drawWorld(t *rapid.T, groups []policy.Group) *world {
	var w world
	for i := range rapid.IntRange(1, 5).Draw(t, "buckets") {
		modes := []policy.Mode{policy.Enforce, policy.Enforce, policy.Shadow, policy.Log}
		p := &policy.Policy{
			Name: fmt.Sprint("policy-", i), Scope: policy.Tenant, Limit: *Limits(Every...).Draw(t, "limit"), Cost: -1,
			Mode: rapid.SampledFrom(modes).Draw(t, "mode"),
		}
		key := policy.Key{Namespace: "n", Policy: p.Name, Group: groups[i%len(groups)]}
		if key.Group == policy.ByTenant {
			key.GroupID = "acme"
		}
		w.bounds = append(w.bounds, WithPolicy(policy.Bound{Key: key}, p))
	}
	return &w
}

// advance advances the clock and sometimes changes a policy. It changes a limit only while its bucket has not expired,
// because stores differ in how an expired bucket counts for another limit.
func (w *world) advance(t *rapid.T, model *Model) {
	i := rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bucket")
	model.clock.Advance(Gap(t, &w.bounds[i].Policy.Limit))
	if rapid.IntRange(0, 9).Draw(t, "change") > 0 {
		return
	}
	key := w.bounds[i].Key
	for _, key.Slots = range []bool{false, true} {
		if bucket, kept := model.buckets[key]; kept && bucket.expiry <= model.clock.Now() {
			return
		}
	}
	changed := *w.bounds[i].Policy
	changed.Limit = *Limits(Every...).Draw(t, "changed limit")
	changed.Mode = rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Shadow}).Draw(t, "changed mode")
	w.bounds[i] = WithPolicy(w.bounds[i], &changed)
}

// request draws bounds, sometimes two of one bucket.
func (w *world) request(t *rapid.T) []policy.Bound {
	bounds := make([]policy.Bound, rapid.IntRange(1, len(w.bounds)+1).Draw(t, "bounds"))
	for i := range bounds {
		bounds[i] = w.bounds[rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bound")]
		bounds[i].Cost = Cost(t, &bounds[i].Policy.Limit)
	}
	return bounds
}
