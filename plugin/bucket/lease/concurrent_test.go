package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// The clock stands still, so that nothing comes back but what is given back.
func TestRequestsAtOnceAtTwoNodesSpendEveryTokenOnceAndInEveryScope(t *testing.T) {
	const callers, each, quantity = 4, 1000, 3000
	bank := newBank()
	bounds := []policy.Bound{
		window(t, "window", quantity), tokens(t, "bucket", 10*quantity),
		window(t, "exact", 10*quantity),
	}
	var admissions atomic.Int64
	var running, calling sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var nodes []*node
	for range 2 {
		n := newNode(bank, Options{})
		n.live = 2
		nodes = append(nodes, n)
		n.warm(t, bounds[:2]...)
		admissions.Add(21)
	}
	for _, n := range nodes {
		running.Go(func() {
			assert.NoError(t, n.Run(ctx))
		})
		for caller := range callers {
			calling.Go(func() {
				for i := range each {
					scopes := bounds[:2+(caller+i)/5%2] // with the exact one, draws wait for its answer
					if n.admits(t, scopes...) {
						admissions.Add(1)
					}
				}
			})
		}
	}
	calling.Wait()
	cancel()
	running.Wait()
	for _, b := range bounds[:2] {
		if used := bank.used(b); used != admissions.Load() || used > quantity {
			t.Errorf("%s: used is %d after %d admissions, at most %d are allowed",
				b.Policy.Name, used, admissions.Load(), quantity)
		}
	}
	var drawn uint64
	for _, n := range nodes {
		assert.Zero(t, n.Stats().Out, "tokens are out at the end")
		drawn += n.Stats().FromLease
	}
	assert.True(t, drawn != 0, "nothing was leased")
}

func TestWhatARequestHoldsWhenItsLimitChangesIsNotPutBack(t *testing.T) {
	n := newNode(newBank(), Options{})
	b, exact := window(t, "window", 10_000),
		with(window(t, "exact", 10), func(p *policy.Policy) { p.FailMode = policy.FailClosed })
	n.warm(t, b)
	changed := b
	changed.Policy = window(t, "window", 20_000).Policy
	n.bank.during = func() {
		n.bank.set(up)
		n.admits(t, changed)
	}
	n.bank.set(deaf) // the request that holds 5 fails closed
	statuses := n.take(t, withCost(b, 5), exact)
	require.True(t, !statuses[0].Charged && decision.Denies(&exact, &statuses[1]), "statuses %+v, want a denial", statuses)
	assert.Zero(t, n.Stats().Out, "tokens of the old limit can be spent under the new one")
}
