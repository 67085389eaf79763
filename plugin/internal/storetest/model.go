package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Model is the reference store: what Take promises, written down as plainly as possible. A bucket's state changes
// only when it is spent from or refunded, and is dropped at its expiry. It is safe for concurrent use.
type Model struct {
	clock   Clock
	place   Place
	mu      sync.Mutex
	now     limit.Micros // of the current request
	buckets map[policy.Key]modelBucket
}

// Place returns the name of the place that keeps a bucket. Bounds of one place are decided together; places are asked
// at once, and what one has spent is refunded if another denies.
type Place func(*policy.Key) string

type modelBucket struct {
	state  limit.State
	expiry limit.Micros
}

// NewModel returns an empty model of a store that keeps all buckets in one place.
func NewModel(clock Clock) *Model {
	return &Model{clock: clock, place: onePlace, buckets: map[policy.Key]modelBucket{}}
}

func onePlace(*policy.Key) string { return "" }

// state returns a copy of the bucket's state, brought to the present.
func (m *Model) state(b *policy.Bound) limit.State {
	var s limit.State
	if bucket, ok := m.buckets[b.Key]; ok && bucket.expiry > m.now {
		s = bucket.state
		s.Log = slices.Clone(s.Log)
	}
	b.Policy.Limit.Advance(&s, m.now)
	return s
}

func (m *Model) wait(b *policy.Bound, cost int64) limit.Micros {
	s := m.state(b)
	return b.Policy.Limit.Wait(&s, m.now, cost)
}

func (m *Model) spend(b *policy.Bound, status *decision.Status) {
	if b.Cost <= 0 {
		return
	}
	s, l := m.state(b), &b.Policy.Limit
	l.Spend(&s, m.now, b.Cost)
	m.buckets[b.Key] = modelBucket{state: s, expiry: l.Expiry(&s, m.now)}
	status.Charged, status.Receipt = true, s.Receipt()
}

// refund returns to a bucket what a bound has just spent. The bucket keeps its expiry.
func (m *Model) refund(b *policy.Bound, status *decision.Status) {
	bucket := m.buckets[b.Key]
	b.Policy.Limit.Refund(&bucket.state, m.now, b.Cost, status.Receipt)
	m.buckets[b.Key] = bucket
	status.Charged, status.Receipt = false, limit.Receipt{}
}

// Take implements Store.
func (m *Model) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.clock.Now()
	clear(statuses)
	denied := m.check(bounds, statuses)
	if len(denied) > 0 {
		m.report(bounds, statuses)
	}
	order := m.spendPlaces(bounds, statuses, denied)
	if len(denied) == 0 {
		m.report(bounds, statuses)
		return nil
	}
	for _, i := range order {
		m.refund(&bounds[i], &statuses[i])
	}
	return nil
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
	if len(denied) > 0 { // a shadow shows what would be without what is refunded
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

// report fills in how the buckets stand.
func (m *Model) report(bounds []policy.Bound, statuses []decision.Status) {
	for i := range bounds {
		s := m.state(&bounds[i])
		statuses[i].Status = bounds[i].Policy.Limit.Status(&s, m.now)
		statuses[i].Now, statuses[i].Source = m.now, decision.Memory
	}
}

// demand returns what the enforced bounds of one bucket cost together, cut off far above any capacity.
func demand(bounds []policy.Bound, key policy.Key) int64 {
	var sum int64
	for i := range bounds {
		if bounds[i].Enforced() && bounds[i].Key == key {
			sum = min(sum+min(bounds[i].Cost, 1<<61), 1<<61)
		}
	}
	return sum
}

// lockstep plays random timelines over the store and the model, and demands the same statuses at every step.
func lockstep(t *testing.T, open Open, place Place, groups []policy.Group) {
	rapid.Check(t, func(rt *rapid.T) {
		store, clock := open(t)
		model := NewModel(clock)
		model.place = place
		world := drawWorld(rt, groups)
		for step := range rapid.IntRange(1, 100).Draw(rt, "requests") {
			world.turn(rt, model)
			bounds := world.request(rt)
			got, want := make([]decision.Status, len(bounds)), make([]decision.Status, len(bounds))
			if err := store.Take(context.Background(), bounds, got); err != nil {
				rt.Fatalf("take %d bounds: %v", len(bounds), err)
			}
			if err := model.Take(context.Background(), bounds, want); err != nil {
				rt.Fatalf("model: take %d bounds: %v", len(bounds), err)
			}
			for i := range got {
				want[i].Source = got[i].Source
				want[i].Wait = shadowWait(&bounds[i], &got[i], &want[i])
				if got[i] != want[i] {
					rt.Fatalf("request %d, bound %d: %s\n got %+v\nwant %+v", step, i, describe(&bounds[i]), got[i], want[i])
				}
			}
		}
	})
}

// shadowWait returns the wait that a status must show. A sliding log in shadow that denies may show a later end of it:
// its entries are read once, beside what another bound spent there provisionally.
func shadowWait(b *policy.Bound, got, want *decision.Status) limit.Micros {
	if b.Enforced() || b.Policy.Limit.Spec().Algorithm != limit.SlidingLog || want.Wait == 0 {
		return want.Wait
	}
	return max(got.Wait, want.Wait)
}

func describe(b *policy.Bound) string {
	return fmt.Sprintf("%s of cost %d under %+v", b.Policy.Mode, b.Cost, b.Policy.Limit.Spec())
}

// world is a handful of buckets, and the policy that each has at the moment.
type world struct{ bounds []policy.Bound }

func drawWorld(t *rapid.T, groups []policy.Group) *world {
	var w world
	for i := range rapid.IntRange(1, 5).Draw(t, "buckets") {
		p := &policy.Policy{Name: fmt.Sprint("policy-", i), Scope: policy.Tenant, Limit: *Limits().Draw(t, "limit"), Cost: -1}
		p.Mode = rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Enforce, policy.Shadow, policy.Log}).Draw(t, "mode")
		key := policy.Key{Namespace: "n", Policy: p.Name, Group: groups[i%len(groups)]}
		if key.Group == policy.ByTenant {
			key.GroupID = "acme"
		}
		w.bounds = append(w.bounds, policy.Bound{Policy: p, Key: key})
	}
	return &w
}

// turn lets time pass and at times changes a policy. A limit is changed only while its bucket is remembered: whether
// what has expired still counts under another limit is for each store to say.
func (w *world) turn(t *rapid.T, model *Model) {
	i := rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bucket")
	model.clock.Advance(Gap(t, &w.bounds[i].Policy.Limit))
	bucket, kept := model.buckets[w.bounds[i].Key]
	if rapid.IntRange(0, 9).Draw(t, "change") > 0 || (kept && bucket.expiry <= model.clock.Now()) {
		return
	}
	changed := *w.bounds[i].Policy
	changed.Limit = *Limits().Draw(t, "changed limit")
	changed.Mode = rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Shadow}).Draw(t, "changed mode")
	w.bounds[i].Policy = &changed
}

// request draws bounds, at times two of one bucket.
func (w *world) request(t *rapid.T) []policy.Bound {
	bounds := make([]policy.Bound, rapid.IntRange(1, len(w.bounds)+1).Draw(t, "bounds"))
	for i := range bounds {
		bounds[i] = w.bounds[rapid.IntRange(0, len(w.bounds)-1).Draw(t, "bound")]
		bounds[i].Cost = Cost(t, &bounds[i].Policy.Limit)
	}
	return bounds
}
