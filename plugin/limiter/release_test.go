package limiter

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestReleaseGivesBackTheSlotsOfARequestOnce(t *testing.T) {
	tier := schema.Tier{Name: "a", Limits: []schema.Limit{{Name: "daily", Scope: "tenant", Limit: 9, WindowSize: 86400}}}
	l, err := New(Options{Config: schema.Config{Tiers: []schema.Tier{tier}}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	slots, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 2, Window: 60 * limit.Second})
	require.NoError(t, err)
	b := policy.Bound{
		Policy: &policy.Policy{Name: "exports", Scope: policy.Tenant, Limit: slots},
		Key:    policy.Key{Policy: "exports", Group: policy.ByTenant, GroupID: "acme", Slots: true}, Cost: 1,
	}
	take := func(cost int64) (Decision, int64) {
		var x admit.Exchange
		d := &x.Decision
		d.Reset()
		b.Cost = cost
		d.Resolution.Bounds, d.Resolution.Settles = []policy.Bound{b}, true
		d.Grow()
		require.NoError(t, l.buckets.Take(t.Context(), d.Resolution.Bounds, d.Statuses))
		d.Combine()
		return l.newDecision(&x), d.Statuses[0].Used
	}
	first, _ := take(1)
	second, used := take(1)
	assert.EqualValues(t, 2, used)
	for range 2 {
		first.Release()
		_, used = take(0)
		assert.EqualValues(t, 1, used)
	}
	second.Release()
	_, used = take(0)
	assert.Zero(t, used)
	(&Decision{}).Release()
}
