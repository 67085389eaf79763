package outage

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// inKind is b in the bucket of another subject: an address without a tenant, or a user of b's tenant.
func inKind(b policy.Bound, k kind, subject string) policy.Bound {
	switch k {
	case kindAddress:
		b.Key.Group, b.Key.GroupID = policy.ByIP, subject
	case kindUser:
		b.Key.Kind, b.Key.Subject = policy.KindUser, subject
	}
	return b
}

// flood has so many subjects of a kind take b once each, while the servers are unavailable.
func (w *world) flood(t testing.TB, b policy.Bound, k kind, subjects int) {
	t.Helper()
	for i := range subjects {
		one := inKind(b, k, fmt.Sprint("made-up-", i))
		w.servers.set(one.Key.GroupID, unreachable)
		w.take(t, one)
		w.servers.set(one.Key.GroupID, up)
	}
}

func TestAFloodDuringAnOutageKeepsNoTenantFromBeingCharged(t *testing.T) {
	const places = 320
	for name, flooded := range map[string]struct {
		kind  kind
		by    string // whose users are made up
		taken int    // places that the flood gets
	}{
		"addresses":          {kindAddress, "all the same", places / 4},
		"users of a tenant":  {kindUser, "evil", places / 16},
		"users of the payer": {kindUser, "acme", places / 16},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(Options{}, StoreOptions{})
			w.store.debts.room.most = places
			w.flood(t, bound(t, policy.FailOpen, 1000, flooded.by), flooded.kind, 2*places)
			got := w.store.Stats().Buckets
			assert.True(t, got == flooded.taken, "the flood has %d places of %d, want %d", got, places, flooded.taken)
			day, user := bound(t, policy.FailOpen, 1000, "acme"),
				inKind(bound(t, policy.FailOpen, 1000, "honest"), kindUser, "alice")
			w.outageOf(t, day, 300)
			w.outageOf(t, user, 20)
			w.store.reconcile(context.Background())
			if used := w.sharedUse(t, day); used != 300 {
				t.Errorf("the tenant is charged %d of 300", used)
			}
			if used := w.sharedUse(t, user); used != 20 {
				t.Errorf("another tenant's user is charged %d of 20", used)
			}
		})
	}
}

func TestWhatMattersMostIsChargedFirst(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := bound(t, policy.FailOpen, 1000, "small")
	w.flood(t, b, kindAddress, 2*batch)
	w.outageOf(t, inKind(b, kindAddress, "busy"), 50)
	w.outageOf(t, inKind(b, kindUser, "alice"), 2)
	w.outageOf(t, b, 3)
	large := b
	large.Key.GroupID = "large"
	w.outageOf(t, large, 400)
	var order []string
	for _, d := range w.store.debts.drain(w.clock.Now()) {
		order = append(order, d.key.GroupID+d.key.Subject)
	}
	if want := []string{"large", "small", "smallalice", "busy"}; !slices.Equal(order[:4], want) {
		t.Errorf("charged in the order %q, want %q first", order[:6], want)
	}
}

func TestAHundredThousandDebtsAreChargedInFewCalls(t *testing.T) {
	const debts = 1000
	w := newWorld(Options{}, StoreOptions{})
	w.flood(t, bound(t, policy.FailOpen, 10, "acme"), kindAddress, debts)
	before := w.servers.takes
	w.store.reconcile(context.Background())
	w.expect(t, "open", Tally{Unverified: debts, Charged: debts}, 0)
	if calls, most := w.servers.takes-before, 2*(debts+batch-1)/batch+2; calls > most {
		t.Errorf("%d calls charged %d debts, at most %d may: one to read and one to charge for %d", calls, debts, most, batch)
	}
}

// picky is a central store whose calls for one tenant's buckets are errors.
type picky struct {
	*servers
	not string
}

func (p *picky) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if slices.ContainsFunc(bounds, func(b policy.Bound) bool { return b.Key.GroupID == p.not }) {
		return errUnavailable
	}
	return p.servers.Take(ctx, bounds, statuses)
}

func (p *picky) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if slices.ContainsFunc(bounds, func(b policy.Bound) bool { return b.Key.GroupID == p.not }) {
		return errUnavailable
	}
	return p.servers.Peek(ctx, bounds, statuses)
}

func TestADebtThatCannotBeChargedCostsNoOther(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{})
	b := bound(t, policy.FailOpen, 10, "acme")
	w.flood(t, b, kindAddress, batch)
	w.store.central = &picky{w.servers, "made-up-7"}
	w.store.reconcile(context.Background())
	w.expect(t, "open", Tally{Unverified: batch, Charged: batch - 1, WrittenOff: 1}, 0)
}
