package limiter_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestReleaseGivesBackTheSlotsOfARequestOnce(t *testing.T) {
	exports := schema.Limit{Name: "exports", Scope: "tenant", Limit: 2, Algorithm: "concurrency", MaxDuration: 60}
	tier := schema.Tier{Name: "a", Limits: []schema.Limit{exports}}
	l, err := limiter.New(limiter.Options{Config: schema.Config{Tiers: []schema.Tier{tier}}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, l.Close(context.Background())) }()
	acquire := func(want bool) limiter.Decision {
		d, err := l.TryAcquire(t.Context(), limiter.Request{Org: "acme"})
		require.NoError(t, err)
		assert.Equal(t, want, d.Allowed)
		return d
	}
	first, second, third := acquire(true), acquire(true), acquire(false)
	third.Release() // of a denied request
	acquire(false)
	for range 2 {
		first.Release()
	}
	acquire(true)
	acquire(false)
	second.Release()
	acquire(true)
	handler := l.Middleware(orgOf)(new(served))
	for range 3 {
		assert.Equal(t, http.StatusNoContent, get(handler, "/", "Org", "other").Code, "the handler has returned each time")
	}
}
