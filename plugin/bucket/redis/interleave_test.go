package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// overlapping is a take whose calls are held until a test lets them run, one at a time.
type overlapping struct {
	bounds   []policy.Bound
	statuses []decision.Status
	err      error
	waiting  chan heldCall
	ran      chan struct{} // receives when a call has run
	done     chan struct{}

	calls   []heldCall
	refunds int
}

// heldCall is a call that waits until run is closed.
type heldCall struct {
	place string // its first key
	run   chan struct{}
}

// takeKey is the key of the context of a call that has its overlapping take.
type takeKey struct{}

// holding is a transport that holds the calls of overlapping takes.
type holding struct{ transport }

// Run implements transport.
func (h holding) Run(ctx context.Context, script *script, c *call) error {
	o := ctx.Value(takeKey{}).(*overlapping)
	held := heldCall{c.keys[0], make(chan struct{})}
	o.waiting <- held
	<-held.run
	defer func() { o.ran <- struct{}{} }()
	return h.transport.Run(ctx, script, c)
}

// begin starts a take that makes so many calls at once, and returns it when all of them are held.
func begin(s store.Store, bounds []policy.Bound, calls int) *overlapping {
	o := &overlapping{
		bounds: bounds, statuses: make([]decision.Status, len(bounds)),
		waiting: make(chan heldCall), ran: make(chan struct{}), done: make(chan struct{}),
	}
	go func() {
		defer close(o.done)
		o.err = s.Take(context.WithValue(context.Background(), takeKey{}, o), bounds, o.statuses)
	}()
	for range calls {
		o.calls = append(o.calls, <-o.waiting)
	}
	slices.SortFunc(o.calls, func(a, b heldCall) int { return cmp.Compare(a.place, b.place) })
	return o
}

// step runs the i-th held call. It reports whether the take has ended; if not, another call is held.
func (o *overlapping) step(i int) bool {
	close(o.calls[i].run)
	<-o.ran
	if o.calls = slices.Delete(o.calls, i, i+1); len(o.calls) > 0 {
		return false
	}
	select {
	case refund := <-o.waiting:
		o.calls, o.refunds = append(o.calls, refund), o.refunds+1
		return false
	case <-o.done:
		return true
	}
}

// A request may be sent before another one and arrive after it. If it were decided at the instant of its sender, the
// interval up to that instant would see what the bucket has refilled later.
func TestARequestThatIsOvertakenIsDecidedAtItsServersInstant(t *testing.T) {
	client := redistest.Single(t).Client(t)
	b := bound(t, "p", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: limit.Second, Burst: 2})
	for name, script := range map[string]*script{"the clock of tests": turnedClock, "the clock of Redis": takeScript} {
		t.Run(name, func(t *testing.T) {
			flush(t, client)
			clock, s := newClock(t, client), newStore("test", holding{&direct{client, false}}, script, quiet)
			slow := begin(s, []policy.Bound{b}, 1)
			clock.Advance(2 * limit.Second)
			fast := begin(s, []policy.Bound{b}, 1)
			for _, o := range []*overlapping{fast, slow} {
				if !o.step(0) || o.err != nil || !o.statuses[0].Charged {
					t.Fatalf("a request of one call is not admitted: %+v, %v", o.statuses[0], o.err)
				}
			}
			if first, second := fast.statuses[0].Now, slow.statuses[0].Now; second < first {
				t.Errorf("the request that arrives second is decided %d µs before the first", first-second)
			}
		})
	}
}

// inShadow is b of a policy that only observes.
func inShadow(b policy.Bound) policy.Bound {
	p := *b.Policy
	p.Mode, b.Policy = policy.Shadow, &p
	return b
}

// interleaving is some overlapping requests of a store, and what was charged to each bucket.
type interleaving struct {
	store   *Store
	clock   clock
	buckets []policy.Bound
	open    []*overlapping
	charged map[string][]limit.Admission
	refunds int
}

// drawBuckets draws buckets of two groups. They are small, so that requests are denied by any.
func (v *interleaving) drawBuckets(t *rapid.T) {
	for i := range rapid.IntRange(2, 4).Draw(t, "buckets") {
		l, err := limit.New(limit.Spec{
			Algorithm: rapid.SampledFrom(storetest.Algorithms).Draw(t, "algorithm"),
			Quantity:  rapid.Int64Range(1, 5).Draw(t, "quantity"), Window: limit.Second,
		})
		require.NoError(t, err)
		name := fmt.Sprint("p", i)
		b := policy.Bound{
			Policy: &policy.Policy{Name: name, Limit: l},
			Key:    policy.Key{Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme"},
		}
		if i%2 == 1 {
			b = everybody(b)
		}
		v.buckets = append(v.buckets, b)
	}
}

// begin begins a request that may spend twice from a bucket, or from one in shadow.
func (v *interleaving) begin(t *rapid.T) {
	var bounds []policy.Bound
	places := map[string]bool{}
	for range rapid.IntRange(1, len(v.buckets)).Draw(t, "bounds") {
		b := rapid.SampledFrom(v.buckets).Draw(t, "bucket")
		b.Cost = rapid.Int64Range(1, 2).Draw(t, "cost")
		if rapid.IntRange(0, 7).Draw(t, "shadow") == 0 {
			b = inShadow(b)
		}
		bounds, places[groupOf(&b.Key)] = append(bounds, b), true
	}
	v.open = append(v.open, begin(v.store, bounds, len(places)))
}

// step runs one call of an open request, and records what a request that has ended was charged.
func (v *interleaving) step(t *rapid.T, i, call int) {
	o := v.open[i]
	if !o.step(call) {
		return
	}
	v.open = slices.Delete(v.open, i, i+1)
	v.refunds += o.refunds
	if o.err != nil {
		t.Fatal(o.err)
	}
	for j, status := range o.statuses {
		if name := o.bounds[j].Policy.Name; status.Charged {
			v.charged[name] = append(v.charged[name], limit.Admission{At: status.Now, Cost: o.bounds[j].Cost})
		}
	}
}

// play interleaves requests, and checks what every interval has seen.
func (v *interleaving) play(t *rapid.T) {
	defer func() { // all end, even if this timeline fails
		for len(v.open) > 0 {
			v.step(t, 0, 0)
		}
	}()
	for range 150 {
		switch kind := rapid.IntRange(0, 19).Draw(t, "step"); {
		case kind == 0:
			b := rapid.SampledFrom(v.buckets).Draw(t, "clock of")
			v.clock.Advance(max(0, storetest.Gap(t, &b.Policy.Limit)))
		case len(v.open) == 0 || kind < 8 && len(v.open) < 8:
			v.begin(t)
		default:
			i := rapid.IntRange(0, len(v.open)-1).Draw(t, "request")
			v.step(t, i, rapid.IntRange(0, len(v.open[i].calls)-1).Draw(t, "call"))
		}
	}
}

// What one group spends and refunds because another one denies lets no interval see more, however requests overlap.
func TestNoInterleavingOfRequestsLetsAnIntervalSeeMoreThanTheBound(t *testing.T) {
	client := redistest.Single(t).Client(t)
	refunds := 0
	rapid.Check(t, func(rt *rapid.T) {
		flush(t, client)
		v := interleaving{charged: map[string][]limit.Admission{}, clock: newClock(t, client)}
		v.store = turned(newStore("test", holding{&direct{client, true}}, turnedClock, quiet))
		v.store.clock = v.clock.Now
		v.drawBuckets(rt)
		v.play(rt)
		refunds += v.refunds
		for _, b := range v.buckets {
			require.NoError(rt, (storetest.Bound{Limit: &b.Policy.Limit}).Check(v.charged[b.Policy.Name]), "%s", b.Policy.Name)
		}
	})
	assert.True(t, refunds != 0, "no request was refunded")
}

// groupOf returns the place of a bucket: one call decides the buckets of a group.
func groupOf(key *policy.Key) string { return key.GroupID }

// One sliding log has two bounds in shadow, of which the first spends what is refunded as the other group denies.
func TestABoundShowsNothingOfWhatAnotherGroupDenied(t *testing.T) {
	client := redistest.Single(t).Client(t)
	newClock(t, client)
	s := turned(newStore("test", &direct{client, true}, turnedClock, quiet))
	window := 3600 * limit.Second
	empty := everybody(bound(t, "empty", limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1, Window: window}))
	shadow := inShadow(bound(t, "shadow", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 2, Window: window}))
	shadow.Cost = 2
	require.NoError(t, s.Take(t.Context(), []policy.Bound{empty}, make([]decision.Status, 1)))
	statuses := make([]decision.Status, 3)
	require.NoError(t, s.Take(t.Context(), []policy.Bound{shadow, shadow, empty}, statuses))
	for i, s := range statuses[:2] {
		if s.Used != 0 || s.Wait != 0 || s.Charged {
			t.Errorf("bound %d of the shadow has %d used, wait %d, charged %t: want an empty bucket", i, s.Used, s.Wait, s.Charged)
		}
	}
	assert.False(t, statuses[2].Admits(), "an empty bucket admits")
}
