package lease

import (
	"context"
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// hot are bounds of one tenant's requests, with leases that last.
func hot(t testing.TB, n *node, bounds int) []policy.Bound {
	t.Helper()
	list := make([]policy.Bound, bounds)
	for i := range list {
		list[i] = bound(t, fmt.Sprint("bucket-", i),
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1e12, Window: 1e6 * limit.Second})
	}
	for range 20 {
		for range 200 {
			n.admits(t, list...)
		}
		n.bank.clock.Advance(span)
		n.background()
	}
	return list
}

func TestARememberedDenialAllocatesNothing(t *testing.T) {
	n := newNode(newBank(), Options{})
	list, statuses := []policy.Bound{tokens(t, "roomy", 1000), window(t, "empty", 1)}, make([]decision.Status, 2)
	n.admits(t, list...)
	n.admits(t, list...)
	allocations := testing.AllocsPerRun(100, func() {
		if err := n.view.Take(context.Background(), list, statuses); err != nil || statuses[1].Admits() {
			t.Fatalf("take: %v, %+v", err, statuses[1])
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
}

// load is simulated traffic of one hot tenant: so many requests a second, evenly at so many nodes, for 5 s, while a
// call takes a millisecond and each node's background works as often.
type load struct{ rate, nodes int }

func (l load) run(t testing.TB, bounds []policy.Bound) (calls, admissions, requests int) {
	t.Helper()
	b := newBank()
	nodes := make([]*node, l.nodes)
	for i := range nodes {
		nodes[i] = newNode(b, Options{})
		nodes[i].live = l.nodes
	}
	var due limit.Micros
	for requests < 5*l.rate {
		n := nodes[requests%l.nodes]
		if n.admits(t, bounds...) {
			admissions++
		}
		requests++
		b.clock.Advance(limit.Micros(requests*1_000_000/l.rate) - limit.Micros((requests-1)*1_000_000/l.rate))
		if now := b.clock.Now(); now >= due {
			for _, n := range nodes {
				n.run()
			}
			due = now + 1000
		}
	}
	return b.calls + b.refunds, admissions, requests
}

func perSecond(t testing.TB, rate int64, names ...string) []policy.Bound {
	t.Helper()
	var bounds []policy.Bound
	for _, name := range names {
		bounds = append(bounds, bound(t, name,
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: rate, Window: limit.Second}))
	}
	return bounds
}

func TestSoakAHotTenantReachesTheStoreWithFewOfItsRequests(t *testing.T) {
	t.Parallel()
	all := []struct {
		load
		limit int64
		most  float64 // calls per 1,000 requests
	}{
		{load{50_000, 1}, 100_000, 2},
		{load{5_000, 1}, 100_000, 5},
		{load{5_000, 1}, 5000, 15},
		{load{5_000, 4}, 100_000, 15},
		{load{5_000, 4}, 5000, 60},
	}
	for _, test := range all[soak.Count(1, 0):] { // the first one takes more than all the others
		bounds := append(perSecond(t, test.limit, "tenant", "tenant+endpoint", "user"), perSecond(t, 100_000, "global")...)
		calls, admissions, requests := test.run(t, bounds)
		if per1000 := 1000 * float64(calls) / float64(requests); per1000 > test.most || admissions != requests {
			t.Errorf("%d requests/s of %d at %d nodes: %.1f calls per 1,000, want %v; %d of %d admitted",
				test.rate, test.limit, test.nodes, per1000, test.most, admissions, requests)
		}
	}
}

func TestSoakATenantBeyondItsLimitCostsFewCallsAndGetsAllButTheShare(t *testing.T) {
	t.Parallel()
	all := []struct {
		load
		limit int
		most  int // calls per 1,000 requests
	}{
		{load{5000, 1}, 3000, 20},
		{load{5000, 4}, 3000, 80},
		{load{15_000, 1}, 5000, 8},
		{load{15_000, 4}, 5000, 25},
		{load{150_000, 4}, 5000, 4},
	}
	// The short form is one node far above its limit, and four nodes above theirs.
	for _, test := range all[soak.Count(1, 0):soak.Count(3, len(all))] {
		const seconds = 5
		calls, admissions, requests := test.run(t,
			append(perSecond(t, int64(test.limit), "tenant", "user"), perSecond(t, 100_000, "tenant+endpoint", "global")...))
		allowed := test.limit + seconds*test.limit
		if admissions > allowed || admissions < allowed-test.limit/50-allowed/200 {
			t.Errorf("%+v of %d: admitted %d, want %d less the share of a limit and 0.5 %%",
				test.load, test.limit, admissions, allowed)
		}
		if per1000 := 1000 * calls / requests; per1000 > test.most {
			t.Errorf("%+v of %d: %d calls per 1,000 requests, want at most %d", test.load, test.limit, per1000, test.most)
		}
	}
}
