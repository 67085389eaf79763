package outage

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// atOnce is a bound of n requests in flight.
func atOnce(t *testing.T, mode policy.FailMode, n int64) policy.Bound {
	b := bound(t, mode, n, "acme")
	p := *b.Policy
	p.Limit = compiled(t, limit.Spec{Algorithm: limit.Concurrency, Quantity: n, Window: minute})
	return storetest.WithPolicy(b, &p)
}

func TestANodeAdmitsItsShareOfAConcurrencyLimitAndOneAtLeast(t *testing.T) {
	for quantity, share := range map[int64]int{1: 1, 10: 2, 100: 23} {
		w := newWorld(Options{}, StoreOptions{Nodes: 3})
		b := atOnce(t, policy.FailLocal, quantity)
		w.servers.set("acme", unreachable)
		var first []decision.Status
		for i := range share + 1 {
			statuses, admitted := w.take(t, b)
			if admitted != (i < share) {
				t.Errorf("request %d of a share of %d: %+v", i, share, statuses[0])
			}
			if i == 0 {
				first = statuses
			}
		}
		assert.EqualValues(t, -1, w.settle(t, b, first, 0).Settled)
		_, admitted := w.take(t, b)
		assert.True(t, admitted, "a slot of this node is free again after its release")
		w.servers.set("acme", up)
		w.store.reconcile(t.Context())
		assert.Zero(t, w.servers.used(&b), "slots of this node are no debt")
	}
}

func TestASlotThatAnUnansweredTakeLeftIsReleased(t *testing.T) {
	for _, mode := range []policy.FailMode{policy.FailLocal, policy.FailOpen, policy.FailClosed} {
		w := newWorld(Options{}, StoreOptions{})
		b := atOnce(t, mode, 1)
		w.servers.set("acme", deaf)
		w.take(t, b)
		assert.EqualValues(t, 1, w.servers.used(&b), "%s: the store has a slot that no request knows", mode)
		w.servers.set("acme", silent)
		w.store.reconcile(t.Context())
		assert.True(t, w.store.debts.hasDebts(), "%s: the release is repeated", mode)
		w.servers.set("acme", up)
		w.store.reconcile(t.Context())
		assert.Zero(t, w.servers.used(&b), "%s: slots after the release", mode)
		assert.False(t, w.store.debts.hasDebts(), "%s: the release is not repeated", mode)
	}
}

func TestAReleaseDuringAnOutageIsMadeLater(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := atOnce(t, policy.FailLocal, 1)
	taken, _ := w.take(t, b)
	w.servers.set("acme", unreachable)
	s := w.settle(t, b, taken, 0)
	assert.Equal(t, decision.Unavailable, s.Failure)
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	assert.Zero(t, w.servers.used(&b), "slots after the outage")

	w.take(t, b)
	w.servers.set("acme", deaf)
	w.take(t, b)
	w.servers.set("acme", silent)
	w.clock.Advance(minute)
	w.store.reconcile(t.Context())
	assert.False(t, w.store.debts.hasDebts(), "a slot that has ended by its deadline is forgotten")
}
