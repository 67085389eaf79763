package lease

import (
	"context"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/leaktest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// condition is how the bank behaves.
type condition uint8

const (
	up          condition = iota
	unreachable           // nothing is run
	deaf                  // it is run, and no answer comes
)

// bank is the central store: its clock is ahead of the nodes', and asking it takes time.
type bank struct {
	clock *storetest.ManualClock
	began limit.Micros
	ahead limit.Micros
	fast  limit.Micros // by how much its clock gains in 1000
	there limit.Micros // from the nodes to the bank
	back  limit.Micros // and back

	mu      sync.Mutex
	is      condition
	states  map[policy.Key]limit.State
	calls   int
	refunds int

	settlements int
	late        bool     // refunds do not arrive before deliver
	mail        []func() // those that have not
	during      func()   // runs once, while an answer is on its way
}

func newBank() *bank {
	clock := storetest.NewClock()
	return &bank{clock: clock, began: clock.Now(), states: map[policy.Key]limit.State{}}
}

func (b *bank) Now() limit.Micros {
	return b.clock.Now() + b.ahead + (b.clock.Now()-b.began)*b.fast/1000
}

// Take implements store.Store.
func (b *bank) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return b.call(bounds, statuses, b.answer)
}

// Peek implements store.Store.
func (b *bank) Peek(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return b.call(bounds, statuses, func(bounds []policy.Bound, statuses []decision.Status) {
		before := maps.Clone(b.states)
		b.answer(bounds, statuses)
		b.states = before
		for i := range statuses {
			statuses[i].Charged, statuses[i].Receipt = false, limit.Receipt{}
			l, state := &bounds[i].Policy.Limit, b.states[bounds[i].Key]
			l.Advance(&state, statuses[i].Now)
			statuses[i].Status = l.Status(&state, statuses[i].Now)
		}
	})
}

// call answers a call that takes its time.
func (b *bank) call(
	bounds []policy.Bound, statuses []decision.Status, answer func([]policy.Bound, []decision.Status),
) error {
	b.clock.Advance(b.there)
	b.mu.Lock()
	b.calls++
	clear(statuses)
	if b.is != unreachable {
		answer(bounds, statuses)
	}
	if b.is != up {
		for i := range statuses {
			statuses[i] = decision.Status{Failure: decision.TimedOut, Wait: limit.Second}
		}
	}
	during := b.during
	b.during = nil
	b.mu.Unlock()
	if during != nil {
		during()
	}
	b.clock.Advance(b.back)
	return nil
}

func (b *bank) answer(bounds []policy.Bound, statuses []decision.Status) {
	now := b.Now()
	before := maps.Clone(b.states)
	denied := false
	for _, enforced := range []bool{true, false} {
		for i := range bounds {
			bound, status := &bounds[i], &statuses[i]
			if bound.Enforced() != enforced {
				continue
			}
			l, state := &bound.Policy.Limit, b.states[bound.Key]
			l.Advance(&state, now)
			status.Now, status.Source = now, decision.Redis
			if status.Wait = l.Wait(&state, now, bound.Cost); status.Wait > 0 {
				denied = denied || enforced
			} else if !denied {
				status.Receipt = l.Acquire(&state, now, bound.Cost, store.NewSlotID())
				b.states[bound.Key], status.Charged = state, bound.Cost > 0
			}
		}
	}
	if denied {
		b.states = before
	}
	for i := range bounds {
		state := b.states[bounds[i].Key]
		bounds[i].Policy.Limit.Advance(&state, now)
		statuses[i].Status = bounds[i].Policy.Limit.Status(&state, now)
		statuses[i].Charged = statuses[i].Charged && !denied
	}
}

// Settle implements store.Store.
func (b *bank) Settle(
	_ context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if actual == nil {
		b.refunds++
		switch {
		case b.is == unreachable:
		case b.late:
			b.mail = append(b.mail, func() { b.refund(bounds, statuses) })
		default:
			b.refund(bounds, statuses)
		}
		return nil
	}
	b.settlements++
	for i := range bounds {
		status := &statuses[i]
		if !status.Charged || status.Source != decision.Redis {
			continue
		}
		if status.Charged, status.Settled = false, 0; b.is == unreachable {
			status.Failure = decision.Unavailable
			continue
		}
		l, state := &bounds[i].Policy.Limit, b.states[bounds[i].Key]
		status.Settled = l.WholeTokens(l.Settle(&state, b.Now(), bounds[i].Cost, actual[i], status.Receipt))
		b.states[bounds[i].Key] = state
	}
	return nil
}

// deliver lets the refunds arrive that are on their way.
func (b *bank) deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, refund := range b.mail {
		refund()
	}
	b.mail = nil
}

func (b *bank) refund(bounds []policy.Bound, statuses []decision.Status) {
	for i := range bounds {
		l, state := &bounds[i].Policy.Limit, b.states[bounds[i].Key]
		statuses[i].Settled = -l.WholeTokens(l.Refund(&state, b.Now(), bounds[i].Cost, statuses[i].Receipt))
		b.states[bounds[i].Key] = state
	}
}

// used is what a bucket counts.
func (b *bank) used(bound policy.Bound) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.states[bound.Key]
	bound.Policy.Limit.Advance(&state, b.Now())
	return bound.Policy.Limit.Status(&state, b.Now()).Used
}

func (b *bank) set(c condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.is = c
}

// node is a store with one view, alone unless others are set.
type node struct {
	*Leases
	view *Store
	bank *bank
	live int
	next limit.Micros // the instant of the next Step
}

func newNode(b *bank, o Options) *node {
	n := &node{bank: b, live: 1}
	o.Now = b.clock.Now
	if o.Nodes == nil {
		o.Nodes = func(string) int { return n.live }
	}
	o.Policies = allButExact{}
	n.Leases = New(b, o)
	n.view = n.Store(b)
	return n
}

// allButExact leases all policies but those named exact.
type allButExact struct{}

func (allButExact) MayLease(p *policy.Policy) bool { return p.Name != "exact" }

// run does what is due now, as Run does. It sweeps less often than background.
func (n *node) run() {
	n.next = n.Step(context.Background(), n.now())
}

// background does what Run would do now, and sweeps.
func (n *node) background() {
	n.sweep(n.now() - maxGrantAge)
	n.renewDue(context.Background())
	n.returnGrants(context.Background())
}

func (n *node) take(t testing.TB, bounds ...policy.Bound) []decision.Status {
	t.Helper()
	statuses := make([]decision.Status, len(bounds))
	require.NoError(t, n.view.Take(context.Background(), bounds, statuses), "take %d bounds", len(bounds))
	return statuses
}

func (n *node) admits(t testing.TB, bounds ...policy.Bound) bool {
	t.Helper()
	return admitted(bounds, n.take(t, bounds...))
}

func admitted(bounds []policy.Bound, statuses []decision.Status) bool {
	for i := range bounds {
		if decision.Denies(&bounds[i], &statuses[i]) {
			return false
		}
	}
	return true
}

// calls counts what f asks of the bank.
func (n *node) calls(f func()) int {
	before := n.bank.calls
	f()
	return n.bank.calls - before
}

// warm lets the node lease what the bounds spend from, at 20 requests in 100 ms.
func (n *node) warm(t testing.TB, bounds ...policy.Bound) {
	t.Helper()
	for range 20 {
		require.True(t, n.admits(t, bounds...), "a request was denied while the lease was to be warmed")
	}
	n.background()
	calls := n.calls(func() { n.admits(t, bounds...) })
	require.True(t, calls == 0, "a request of 21 calls the store %d times", calls)
}

// bound is cost 1 from the bucket of tenant acme.
func bound(t testing.TB, name string, spec limit.Spec) policy.Bound {
	t.Helper()
	l, err := limit.New(spec)
	require.NoError(t, err, "compile the limit of %s", name)
	return policy.Bound{
		Policy: &policy.Policy{Name: name, Scope: policy.Tenant, Limit: l, Cost: -1},
		Key:    policy.Key{Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme"},
		Cost:   1,
	}
}

// tokens is a token bucket of so many tokens a minute.
func tokens(t testing.TB, name string, quantity int64) policy.Bound {
	t.Helper()
	return bound(t, name, limit.Spec{Algorithm: limit.TokenBucket, Quantity: quantity, Window: 60 * limit.Second})
}

// window is a fixed window of so many tokens a minute.
func window(t testing.TB, name string, quantity int64) policy.Bound {
	t.Helper()
	return bound(t, name, limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: 60 * limit.Second})
}

func withCost(b policy.Bound, cost int64) policy.Bound {
	b.Cost = cost
	return b
}

// with is b under a changed copy of its policy.
func with(b policy.Bound, change func(*policy.Policy)) policy.Bound {
	p := *b.Policy
	change(&p)
	b.Policy = &p
	return b
}

// storePolicy returns the policy that the node calls the central store with for a bucket of p.
func (n *node) storePolicy(p *policy.Policy) *policy.Policy {
	if t := n.terms.get(p); t != nil {
		return t.policy
	}
	return p
}
