package outage

import (
	"context"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// reachable is a central store in this process, which always answers.
type reachable struct{ *memory.Store }

func (r reachable) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	defer markRedis(statuses)
	return r.Store.Take(ctx, bounds, statuses)
}

func (r reachable) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	defer markRedis(statuses)
	return r.Store.Peek(ctx, bounds, statuses)
}

func (reachable) Beat(context.Context, string, string, time.Duration) (int, error) { return 1, nil }
func (reachable) Leave(context.Context, string, string) error                      { return nil }
func (reachable) Probe(context.Context)                                            {}

func markRedis(statuses []decision.Status) {
	for i := range statuses {
		statuses[i].Source = decision.Redis
	}
}

func TestAViewKeepsTheStoresPromises(t *testing.T) {
	storetest.Run(t, func(*testing.T) (store.Store, storetest.Clock) {
		clock := storetest.NewClock()
		central, fallback := memory.New(memory.Options{Now: clock.Now}), memory.New(memory.Options{Now: clock.Now})
		o := Options{Name: "main", Log: quiet(), Now: clock.Now, Breakers: NewBreakers(quiet(), time.Now)}
		return New(reachable{central}, fallback, o).Store(StoreOptions{Namespace: "default"}), clock
	})
}

func TestARefundOfWhatThisProcessAdmittedIsNotChargedLater(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{SharePct: 100})
	b := bound(t, policy.FailLocal, 100, "acme")
	b.Cost = 5
	w.servers.set("acme", unreachable)
	w.take(t, b)
	statuses, _ := w.take(t, b)
	bounds := []policy.Bound{b}
	if err := w.view.Refund(t.Context(), bounds, statuses); err != nil || statuses[0].Charged ||
		statuses[0].Returned != 5 {
		t.Errorf("refunded %+v (%v), want 5 tokens returned", statuses[0], err)
	}
	w.expect(t, "local", Tally{Unverified: 5}, 5)
	w.servers.set("acme", up)
	w.store.reconcile(t.Context())
	w.expect(t, "local", Tally{Unverified: 5, Charged: 5}, 0)
}

func TestAForgottenBucketIsFreeHereAndThereAndOwesNothing(t *testing.T) {
	w := newWorld(Options{}, StoreOptions{SharePct: 100})
	b := bound(t, policy.FailLocal, 100, "acme")
	w.take(t, b)
	w.servers.set("acme", unreachable)
	w.take(t, b)
	keys := policy.KeysOf([]policy.Bound{b})
	if n, err := w.view.Forget(t.Context(), keys); err == nil || n != 1 {
		t.Errorf("%d buckets were deleted (%v), want the one of this process, and an error", n, err)
	}
	w.servers.set("acme", up)
	if n, err := w.view.Forget(t.Context(), keys); err != nil || n != 1 {
		t.Errorf("%d buckets were deleted (%v), want the shared one", n, err)
	}
	w.store.reconcile(t.Context())
	w.expect(t, "local", Tally{Unverified: 1, WrittenOff: 1}, 0)
	w.servers.set("acme", unreachable)
	if statuses, _ := w.take(t, b); statuses[0].Used != 1 {
		t.Errorf("%+v: want one used after both buckets were deleted", statuses[0])
	}
}
