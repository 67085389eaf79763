package policy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestAConcurrencyLimitIsScaledUpToTheMostSlots(t *testing.T) {
	l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: 10, Window: 600 * limit.Second})
	require.NoError(t, err)
	p := &Policy{Name: "exports", Scope: Tenant, Limit: l}
	assert.Equal(t, "10 at once, each for at most 600 s (concurrency) per tenant", p.Describe())
	for factor, want := range map[int64]int64{1: 1, 500: 5, 2000: 20, 5_000_000: limit.MaxSlots} {
		changed, err := limit.New(scaled(l.Spec(), factor))
		require.NoError(t, err, "times %d ÷ 1000", factor)
		assert.Equal(t, want, changed.Capacity())
	}
}
