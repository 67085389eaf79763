package lease

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// empty is a token bucket of 100 an hour that is not leased and has denied for the first time.
func empty(t *testing.T, n *node) policy.Bound {
	t.Helper()
	b := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100, Window: 3600 * limit.Second})
	for n.admits(t, b) {
		continue
	}
	return b
}

// pairs counts the denials of requests that come in pairs, 10 ms apart.
func pairs(t *testing.T, n *node, b policy.Bound) (denied int) {
	t.Helper()
	for range 40 {
		for range 2 {
			if !n.admits(t, b) {
				denied++
			}
		}
		n.bank.clock.Advance(10_000)
	}
	return denied
}

func TestADenialIsForgottenWhenTheBucketIsEmptied(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := empty(t, n)
	n.bank.states = map[policy.Key]limit.State{} // an operator's reset, or a Redis that lost its data
	n.bank.clock.Advance(limit.Second)
	if denied := pairs(t, n, b); denied > 0 {
		t.Errorf("a second later, %d of 80 are denied by a bucket that holds 100", denied)
	}
}

func TestADenialIsForgottenWhenTheStoreDoesNotAnswer(t *testing.T) {
	n := newNode(newBank(), Options{})
	b := empty(t, n)
	n.bank.set(unreachable)
	n.bank.clock.Advance(limit.Second)
	if denied := pairs(t, n, b); denied > 0 {
		t.Errorf("a second later, %d of 80 are denied though fail modes let them pass", denied)
	}
}

func TestARequestThatCostsNothingMakesNoDenial(t *testing.T) {
	n := newNode(newBank(), Options{})
	began := n.now()
	n.now = func() limit.Micros { return n.bank.clock.Now() - began + limit.Second } // the process has just begun
	b := empty(t, n)
	raised := bound(t, "exact", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 200, Window: 3600 * limit.Second})
	n.admits(t, raised)
	n.admits(t, withCost(raised, 0))
	if status := n.take(t, withCost(raised, 1))[0]; !answered(&status) {
		t.Errorf("under the limit that took the place of %s, a request is answered %+v without the store",
			b.Policy.Describe(), status)
	}
}
