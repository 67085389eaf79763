package engine

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// benchDecider returns a decider with a number of bounds for each request, of mixed scopes and algorithms.
func benchDecider(tb testing.TB, bounds int) (*admit.Decider, *memory.Store) {
	tb.Helper()
	scopes := []string{schema.ScopeTenant, schema.ScopeUser, schema.ScopeTenantEndpoint, schema.ScopeGlobal}
	algorithms := []string{
		schema.AlgorithmTokenBucket, schema.AlgorithmTokenBucket, schema.AlgorithmSlidingWindow, schema.AlgorithmFixedWindow,
	}
	tier := schema.Tier{Name: "a"}
	for i := range bounds {
		l := schema.Limit{
			Name: "l" + strconv.Itoa(i), Scope: scopes[i%4], Algorithm: algorithms[i%4],
			Limit: 1_000_000_000, WindowSize: 1,
		}
		if l.Scope == schema.ScopeTenantEndpoint {
			l.Endpoint = "GET /records/{id}"
		}
		tier.Limits = append(tier.Limits, l)
	}
	config := schema.Config{
		Tiers: []schema.Tier{tier}, UserFrom: []string{"header.X-User"}, TrustedHeaders: []string{"X-User"},
	}.WithDefaults()
	require.NoError(tb, config.Validate())
	plan, err := resolve.FromConfig(config)
	require.NoError(tb, err)
	store := memory.New(memory.Options{Now: process.BucketClock.Now})
	decider := &admit.Decider{
		Now: process.WallClock, Buckets: store, Renderer: response.New(config, nil),
		Observers: []admit.Observer{&observer{}},
	}
	decider.Policies.Store(plan)
	return decider, store
}

// fixedFacts implements admit.FactSource with the facts of one tenant.
type fixedFacts struct{ tenant string }

func (f *fixedFacts) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Consumer.CustomID = f.tenant
	req.Method, req.Path = "GET", "/records/7"
	req.Headers = append(req.Headers[:0], "u_42")
	return nil
}

func TestADecisionOfFourBoundsInMemoryAllocatesNothing(t *testing.T) {
	dr, store := benchDecider(t, 4)
	dr.Observers = append(dr.Observers, usage.NewCounter())
	var x admit.Exchange
	facts := &fixedFacts{"acme"}
	ctx := context.Background()
	if got := testing.AllocsPerRun(1000, func() {
		if err := dr.Admit(ctx, facts, &x); err != nil || x.Response.Denied {
			t.Fatal("denied", err)
		}
	}); got != 0 {
		t.Errorf("%g allocations for a decision, want 0", got)
	}
	if len(x.Decision.Statuses) != 4 || store.Stats().Buckets != 4 {
		t.Errorf("%d bounds, %d buckets; want 4", len(x.Decision.Statuses), store.Stats().Buckets)
	}
}
