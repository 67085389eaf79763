package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestAConcurrencyLimitReservesASlotInABucketOfItsOwn(t *testing.T) {
	l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 10, Window: 600 * limit.Second})
	require.NoError(t, err)
	p := &Policy{Name: "exports", Scope: Tenant, Limit: l}
	assert.Equal(t, `"exports";q=10;qu="concurrent-requests"`, p.quotaItem())
	assert.Equal(t, "10 at once, each for at most 600 s (concurrency) per tenant", p.Describe())
	assert.True(t, p.Reserves() && !p.Leasable())
	assert.Equal(t, 600*limit.Second, p.Timeout())

	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}}
	var slots, tokens Key
	tokensOf := &Policy{Name: "exports", Scope: Tenant}
	require.True(t, p.FillKey("default", &id, &slots) && tokensOf.FillKey("default", &id, &tokens))
	assert.True(t, slots.Slots && !tokens.Slots)

	for factor, want := range map[int64]int64{1: 1, 500: 5, 2000: 20, 5_000_000: limit.MaxSlots} {
		changed, err := limit.New(scaled(l.Spec(), factor))
		require.NoError(t, err, "times %d ÷ 1000", factor)
		assert.Equal(t, want, changed.Capacity())
	}
}
