package limiter_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestTwoLimitersOnOneRedisGiveOutOneBudgetExactly(t *testing.T) {
	config := inRedis(t, redistest.Single(t), `
tiers: [{name: a, limits: [{name: daily, scope: tenant, limit: 300, window_size: 86400, algorithm: fixed_window}]}]`)
	both := []*limiter.Limiter{limiting(t, config), limiting(t, config)}
	next := func(i int) (*limiter.Limiter, limiter.Request) { return both[i%2], limiter.Request{Org: "acme"} }
	if n := allowed(t, 600, next); n != 300 {
		t.Errorf("%d requests were allowed of a limit of 300", n)
	}
}

func TestALimiterBoundsHowManyAddressesHaveBucketsInRedis(t *testing.T) {
	server := redistest.Single(t)
	config := inRedis(t, server, `
anonymous: {limits: [{name: daily, scope: ip, limit: 100, window_size: 86400}]}`)
	l, err := limiter.New(limiter.Options{Config: config, Budget: time.Minute, MaxAddresses: 32, NewAddresses: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, l.Close(context.Background()))
	})
	const addresses = 200
	for i := range addresses {
		if d := acquire(t, l, limiter.Request{IP: fmt.Sprintf("10.%d.0.1", i)}); !d.Allowed {
			t.Fatalf("address %d: %+v, want it allowed", i, d)
		}
	}
	keys, err := server.Client(t).Keys(t.Context(), "rl:default:{i=*").Result()
	// as many prefixes, which are rounded up to a set
	if most := 32 + 32; err != nil || len(keys) > most || len(keys) < 32 {
		t.Errorf("%d of %d addresses have buckets in Redis, %v: want at most %d, with prefixes",
			len(keys), addresses, err, most)
	}
}

// consumer is the source of facts for a consumer that Kong has authenticated.
type consumer struct{ customID string }

func (c consumer) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	if facts&identity.ConsumerFact != 0 {
		req.Consumer.CustomID = c.customID
	}
	return nil
}

// pluginDecider returns the decider that the plugin has for a config.
func pluginDecider(t *testing.T, config schema.Config) *admit.Decider {
	t.Helper()
	config = config.WithDefaults()
	began := time.Now()
	all := bucket.New(t.Context(), bucket.Options{
		Now:     func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
		Elapsed: func() limit.Micros { return limit.Micros(time.Since(began).Microseconds()) },
		Budget:  time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- all.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	buckets, _, err := all.Open(&config)
	require.NoError(t, err)
	snapshot, err := resolve.FromConfig(config)
	require.NoError(t, err)
	decider := &admit.Decider{Buckets: buckets, Renderer: response.New(config, nil)}
	decider.Policies.Store(snapshot)
	return decider
}

func TestAProgramAndThePluginSpendOneBudget(t *testing.T) {
	config := inRedis(t, redistest.Single(t), daily)
	l, plugin := limiting(t, config), pluginDecider(t, config)
	var x admit.Exchange
	for left := int64(9); left > 0; left -= 2 {
		if d := acquire(t, l, limiter.Request{Org: "acme"}); d.Remaining != left {
			t.Errorf("%+v: want %d left for the program", d, left)
		}
		if err := plugin.Admit(t.Context(), consumer{"acme"}, &x); err != nil || x.Decision.Statuses[0].Remaining != left-1 {
			t.Errorf("%+v, %v: want %d left for the plugin", x.Decision, err, left-1)
		}
	}
	if d := acquire(t, l, limiter.Request{Org: "acme"}); d.Allowed || d.Statuses[0].Used != 10 {
		t.Errorf("%+v: want it denied, with 10 used", d)
	}
}

func TestWithoutRedisEachLimitsFailModeDecides(t *testing.T) {
	server := redistest.Single(t)
	for mode, want := range map[string]struct {
		allowed bool
		reason  string
		source  string
	}{
		schema.FailOpen:   {true, "counted", "unanswered"},
		schema.FailClosed: {false, "store_away", "unanswered"},
		schema.FailLocal:  {true, "counted", "local"},
	} {
		config := inRedis(t, server, daily)
		config.FailMode = mode
		l := limiting(t, config)
		acquire(t, l, limiter.Request{Org: mode})
		server.Kill()
		d := acquire(t, l, limiter.Request{Org: mode})
		if d.Allowed != want.allowed || d.Reason != want.reason || !d.Degraded || d.Statuses == nil ||
			d.Statuses[0].Source != want.source || d.Statuses[0].Allowed != want.allowed {
			t.Errorf("fail_mode %s: %+v, want allowed %v because %s, by %s", mode, d, want.allowed, want.reason, want.source)
		}
		assert.True(t, want.allowed || d.StatusCode == 503, "fail_mode %s: status %d, want 503", mode, d.StatusCode)
		server.Restart(t)
	}
}

func TestALimiterIsMadeWithoutWaitingForRedis(t *testing.T) {
	config := parse(t, daily)
	config.Strategy, config.Redis = schema.StrategyRedis, schema.Redis{Host: "127.0.0.1", Port: 1}
	if d := acquire(t, limiting(t, config), limiter.Request{Org: "acme"}); !d.Allowed || !d.Degraded {
		t.Errorf("%+v: want it allowed by this node's share", d)
	}
}

// A node is trusted with leases when it has been counted for some seconds, so this takes as long.
func TestALimiterThatClosesGivesBackWhatItHasLeased(t *testing.T) {
	t.Parallel()
	config := inRedis(t, redistest.Single(t), `
tiers: [{name: a, limits: [{name: yearly, scope: tenant, limit: 100000, window_size: 31622400}]}]`)
	config.Accuracy = schema.AccuracyLeased
	l := limiting(t, config)
	allowed, leased := int64(0), 0
	pace, patience := time.NewTicker(time.Millisecond), time.After(await.Longest)
	defer pace.Stop()
	for leased < 100 {
		select {
		case <-pace.C:
		case <-patience:
			t.Fatalf("%d of %d requests were answered from a lease", leased, allowed)
		}
		d := acquire(t, l, limiter.Request{Org: "acme"})
		require.True(t, d.Allowed, "%+v: want it allowed", d)
		allowed++
		if d.Statuses[0].Source == "lease" {
			leased++
		}
	}
	require.NoError(t, l.Close(t.Context()))
	config.Accuracy = schema.AccuracyExact
	// which is one more
	n := acquire(t, limiting(t, config), limiter.Request{Org: "acme"}).Statuses[0].Used
	// A machine that stalls may lose leases: then more is missing.
	if lost := l.LostLeases(); n < allowed+1 || n > allowed+1 && !lost {
		t.Errorf("%d tokens are missing in Redis, want %d; leases were lost: %t", n, allowed+1, lost)
	}
}
