package bucket_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// tenant is a request that costs one of a million a year: little refills while a test runs.
func tenant(t *testing.T) []policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1_000_000, Window: 31_622_400 * limit.Second})
	require.NoError(t, err)
	key := policy.Key{Namespace: "default", Policy: "p", Group: policy.ByTenant, GroupID: "acme"}
	return []policy.Bound{{Policy: &policy.Policy{Name: "p", Limit: l, FailMode: policy.FailLocal}, Key: key, Cost: 1}}
}

// until sends requests, a thousand a second, until one is answered so that enough holds, which may take some seconds: a
// node leases nothing before all others know it.
func until(t *testing.T, view taker, enough func(*decision.Status) bool) (last decision.Status, sent int64) {
	t.Helper()
	bounds, statuses := tenant(t), make([]decision.Status, 1)
	patience, next := time.After(await.Longest), time.NewTicker(time.Millisecond)
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-patience:
			t.Fatalf("after %d requests, the last is answered %+v", sent, last)
		}
		require.NoError(t, view.Take(t.Context(), bounds, statuses))
		sent, last = sent+1, statuses[0]
		if enough(&last) {
			return last, sent
		}
	}
}

func out(of *bucket.Stores) (tokens int64) {
	for _, stats := range of.Stats() {
		tokens += stats.Lease.Out
	}
	return tokens
}

func TestLeasesAreGivenBackBeforeTheNodeTakesItsLeave(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t, "--slowlog-log-slower-than", "0")
	of, stop := serving(t, time.Minute)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	until(t, view, func(*decision.Status) bool { return out(of) > 0 })
	stop()
	commands, err := server.Client(t).SlowLogGet(context.Background(), 20).Result()
	require.NoError(t, err)
	for _, c := range commands { // the last comes first
		if c.Args[0] != "evalsha" {
			continue
		}
		if key := c.Args[3]; !strings.HasSuffix(key, ":{n}") {
			t.Errorf("the last that was changed is %s, want the set of nodes", key)
		}
		return
	}
	t.Errorf("%+v: no script was run", commands)
}

func TestAFallbackKnowsWhatWasSpentFromLeases(t *testing.T) {
	t.Parallel()
	server := redistest.Single(t)
	of, _ := serving(t, time.Minute)
	config := inRedis(server.Port)
	view := opened(t, of, &config)
	_, called := until(t, view, func(s *decision.Status) bool { return s.Source == decision.Leased })
	const more = 1000
	left := more
	until(t, view, func(*decision.Status) bool { left--; return left == 0 })
	server.Kill()
	status, _ := until(t, view, func(s *decision.Status) bool { return s.Source == decision.Local })
	million := status.Used * 1_000_000 / (status.Used + status.Remaining) // a fallback has a share of the limit
	if million < called+more/2 {
		t.Errorf("it counts %d as used, want more than half of the %d that were spent after the first %d",
			million, more, called)
	}
}
