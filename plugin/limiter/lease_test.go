package limiter_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// A node is trusted with leases when it has been counted for some seconds, so this takes as long.
func TestALimiterThatClosesGivesBackWhatItHasLeased(t *testing.T) {
	t.Parallel()
	config := inRedis(t, redistest.Single(t), `
tiers: [{name: a, limits: [{name: yearly, scope: tenant, limit: 100000, window_size: 31622400}]}]`)
	config.Accuracy = schema.AccuracyLeased
	l, err := limiter.New(limiter.Options{Config: config})
	require.NoError(t, err)
	defer l.Close(context.Background())
	allowed, leased := int64(0), 0
	pace, patience := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer pace.Stop()
	for leased < 100 {
		select {
		case <-pace.C:
		case <-patience:
			t.Fatalf("%d of %d requests were answered from a lease", leased, allowed)
		}
		d := acquire(t, l, limiter.Request{Org: "acme"})
		if !d.Allowed {
			t.Fatalf("%+v: want it allowed", d)
		}
		allowed++
		if d.Statuses[0].Source == decision.Leased {
			leased++
		}
	}
	require.NoError(t, l.Close(t.Context()))
	config.Accuracy = schema.AccuracyExact
	// which is one more
	if n := acquire(t, limiting(t, config), limiter.Request{Org: "acme"}).Statuses[0].Used; n != allowed+1 {
		t.Errorf("%d tokens are missing in Redis, want %d", n, allowed+1)
	}
}
