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
// only when it is spent from, and is forgotten at its expiry. It is safe for concurrent use.
type Model struct {
	clock   Clock
	mu      sync.Mutex
	now     limit.Micros // of the request that is being taken
	buckets map[policy.Key]modelBucket
}

type modelBucket struct {
	state  limit.State
	expiry limit.Micros
}

// NewModel is an empty model.
func NewModel(clock Clock) *Model {
	return &Model{clock: clock, buckets: map[policy.Key]modelBucket{}}
}

// state is a copy of the bucket's state, brought to the present.
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

// Take implements Store.
func (m *Model) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.clock.Now()
	clear(statuses)
	denied := false
	for i := range bounds {
		if b := &bounds[i]; b.Enforced() {
			statuses[i].Wait = 0
			if b.Cost > 0 {
				statuses[i].Wait = m.wait(b, asked(bounds[:i+1], b.Key))
			}
			denied = denied || statuses[i].Wait > 0
		}
	}
	for i := range bounds {
		if !denied && bounds[i].Enforced() {
			m.spend(&bounds[i], &statuses[i])
		}
	}
	for i := range bounds {
		if b := &bounds[i]; !b.Enforced() {
			statuses[i].Wait = m.wait(b, b.Cost)
			if !denied && statuses[i].Wait == 0 {
				m.spend(b, &statuses[i])
			}
		}
	}
	for i := range bounds {
		s := m.state(&bounds[i])
		statuses[i].Status = bounds[i].Policy.Limit.Status(&s, m.now)
		statuses[i].Now, statuses[i].Source = m.now, decision.Memory
	}
	return nil
}

// asked is what the enforced bounds of one bucket ask together; no capacity is nearly as large as where it is cut off.
func asked(bounds []policy.Bound, key policy.Key) int64 {
	var sum int64
	for i := range bounds {
		if bounds[i].Enforced() && bounds[i].Key == key {
			sum = min(sum+min(bounds[i].Cost, 1<<61), 1<<61)
		}
	}
	return sum
}

// lockstep plays random timelines over the store and the model, and demands the same statuses at every step.
func lockstep(t *testing.T, open Open) {
	rapid.Check(t, func(rt *rapid.T) {
		store, clock := open(t)
		model := NewModel(clock)
		world := drawWorld(rt)
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
				if got[i] != want[i] {
					rt.Fatalf("request %d, bound %d: %s\n got %+v\nwant %+v", step, i, describe(&bounds[i]), got[i], want[i])
				}
			}
		}
	})
}

func describe(b *policy.Bound) string {
	return fmt.Sprintf("%s of cost %d under %+v", b.Policy.Mode, b.Cost, b.Policy.Limit.Spec())
}

// world is a handful of buckets, and the policy that each has at the moment.
type world struct{ bounds []policy.Bound }

func drawWorld(t *rapid.T) *world {
	var w world
	for i := range rapid.IntRange(1, 5).Draw(t, "buckets") {
		p := &policy.Policy{Name: fmt.Sprint("policy-", i), Scope: policy.Tenant, Limit: *Limits().Draw(t, "limit"), Cost: -1}
		p.Mode = rapid.SampledFrom([]policy.Mode{policy.Enforce, policy.Enforce, policy.Shadow, policy.Log}).Draw(t, "mode")
		w.bounds = append(w.bounds, policy.Bound{
			Policy: p, Key: policy.Key{Namespace: "n", Policy: p.Name, Group: policy.ByTenant, GroupID: "acme"},
		})
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
