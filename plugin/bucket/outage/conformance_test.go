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
