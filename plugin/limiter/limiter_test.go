package limiter_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestADeniedRequestSpendsNothingAndNamesTheLimitThatBinds(t *testing.T) {
	l := limiting(t, parse(t, daily))
	if d := acquire(t, l, limiter.Request{Org: "acme", User: "u", Cost: 3}); !d.Allowed || d.Policy != "user" ||
		d.Remaining != 1 {
		t.Errorf("%+v: want it allowed, with 1 of the user's 4 left", d)
	}
	d := acquire(t, l, limiter.Request{Org: "acme", User: "u", Cost: 2})
	if d.Allowed || d.Policy != "user" || d.Limit != 4 || d.Remaining != 1 || d.RetryAfter <= 0 ||
		d.Reset.Before(time.Now().Add(d.RetryAfter-time.Minute)) {
		t.Errorf("%+v: want it denied for lack of 1 token of the user's", d)
	}
	if d.Reason != "counted" || d.Result != "hard_throttled" || d.StatusCode != 429 ||
		!strings.Contains(string(d.Body), `"violated-policies":["user"]`) {
		t.Errorf("%+v: want a 429 that names the limit, and not %s", d, d.Body)
	}
	require.Len(t, d.Statuses, 2, "%+v: want the answers of two limits", d.Statuses)
	for _, s := range d.Statuses {
		if s.Used != 3 || s.Charged || s.Cost != 2 || s.Allowed != (s.Policy == "daily") ||
			s.Scope != map[string]string{"daily": "tenant", "user": "user"}[s.Policy] {
			t.Errorf("%+v: want 3 used and nothing charged", s)
		}
	}
	if d := acquire(t, l, limiter.Request{Org: "acme", Cost: 11}); d.Allowed || d.RetryAfter != limiter.Never {
		t.Errorf("%+v: want a request that costs more than the limit holds denied for good", d)
	}
}

func TestARequestStatesWhatTheConfigHasKongFind(t *testing.T) {
	l := limiting(t, parse(t, `
tenant_from: [header.X-Tenant]
user_from: [jwt.sub]
tier_from: [header.X-Plan]
trusted_headers: [X-Tenant, X-Plan, X-Cost]
cost_header: X-Cost
cost_header_max: 1
usage_only: true
costs: {"POST /bulk": 5}
tiers:
  - {name: small, limits: [{name: daily, scope: tenant, limit: 10, window_size: 86400}]}
  - name: large
    limits:
      - {name: daily, scope: tenant, limit: 1000, window_size: 86400}
      - {name: user, scope: user, limit: 500, window_size: 86400}
`))
	for _, test := range []struct {
		request   limiter.Request
		policy    string
		remaining int64
	}{
		{limiter.Request{Org: "a"}, "daily", 9},
		{limiter.Request{Org: "a", Endpoint: "post /bulk"}, "daily", 4},
		{limiter.Request{Org: "a", Method: "POST", Path: "//bulk?x=1"}, "daily", -1}, // as Kong's router sees it
		{limiter.Request{Org: "b", Cost: 7}, "daily", 3},
		{limiter.Request{Org: "c", Tier: "large", User: "u", Cost: 450}, "user", 50},
		{limiter.Request{Org: "d", Tier: "no such tier"}, "daily", 9},
		{limiter.Request{IP: "192.0.2.1"}, "daily", 9}, // anonymous: each address has a bucket
		{limiter.Request{IP: "192.0.2.2"}, "daily", 9},
	} {
		d := acquire(t, l, test.request)
		if test.remaining < 0 {
			assert.True(t, !d.Allowed && d.Remaining == 4, "%+v: %+v, want it denied with 4 left", test.request, d)
		} else if !d.Allowed || d.Policy != test.policy || d.Remaining != test.remaining {
			t.Errorf("%+v: %+v, want %d left of %s", test.request, d, test.remaining, test.policy)
		}
	}
}

// allowed makes n requests, eight at once, and returns how many were allowed.
func allowed(t *testing.T, n int, next func(i int) (*limiter.Limiter, limiter.Request)) int64 {
	t.Helper()
	var count, made atomic.Int64
	var requests sync.WaitGroup
	for range 8 {
		requests.Go(func() {
			for i := made.Add(1); i <= int64(n); i = made.Add(1) {
				l, r := next(int(i))
				d, err := l.TryAcquire(t.Context(), r)
				assert.NoError(t, err)
				if d.Allowed {
					count.Add(1)
				}
			}
		})
	}
	requests.Wait()
	return count.Load()
}

func TestARequestWhoseContextHasEndedIsDeniedAndSpendsNothing(t *testing.T) {
	l := limiting(t, parse(t, daily))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := l.TryAcquire(ctx, limiter.Request{Org: "acme"}); !errors.Is(err, context.Canceled) || d.Allowed {
		t.Errorf("%+v, %v: want it denied with the context's error", d, err)
	}
	if d := acquire(t, l, limiter.Request{Org: "acme"}); d.Remaining != 9 {
		t.Errorf("%+v: want 9 left, because the first request spent nothing", d)
	}
}

func TestANonsensicalCostBuysNothing(t *testing.T) {
	l := limiting(t, parse(t, daily))
	for _, cost := range []int64{-1, -1 << 63, limiter.MaxCost + 1, 1<<63 - 1} {
		if d, err := l.TryAcquire(t.Context(), limiter.Request{Org: "acme", Cost: cost}); err == nil || d.Allowed {
			t.Errorf("cost %d: %+v, want it denied with an error", cost, d)
		}
	}
	if d := acquire(t, l, limiter.Request{Org: "acme", Cost: limiter.MaxCost}); d.Allowed ||
		d.RetryAfter != limiter.Never {
		t.Errorf("%+v: want the largest cost denied by the limit", d)
	}
}

func TestNoNameMeetsAnothersBucket(t *testing.T) {
	l := limiting(t, parse(t, daily))
	spent := map[string]int64{}
	name := rapid.OneOf(rapid.String(), rapid.StringN(120, 300, -1),
		rapid.SampledFrom([]string{"a", "A", "a ", "{t=a}", "a:b", "\x00", "\xff\xfe", "a\r\nX: y", "../a"}))
	rapid.Check(t, func(t *rapid.T) {
		org := "org " + name.Draw(t, "org") // never empty
		d, err := l.TryAcquire(context.Background(), limiter.Request{
			Org: org, Tier: name.Draw(t, "tier"), Credential: name.Draw(t, "credential"), IP: name.Draw(t, "ip"),
			Endpoint: name.Draw(t, "endpoint"), Method: name.Draw(t, "method"), Path: name.Draw(t, "path"),
		})
		require.NoError(t, err)
		room := spent[org] < 10
		if room {
			spent[org]++
		}
		if d.Allowed != room || d.Remaining != 10-spent[org] {
			t.Fatalf("%+v, want allowed %v and %d left", d, room, 10-spent[org])
		}
	})
}

func TestAClosedLimiterAnswersAsTheConfigSays(t *testing.T) {
	for onError, want := range map[string]bool{schema.FailOpen: true, schema.FailClosed: false} {
		config := parse(t, daily)
		config.OnInternalError = onError
		l := limiting(t, config)
		for range 2 {
			assert.NoError(t, l.Close(t.Context()))
		}
		d, err := l.TryAcquire(t.Context(), limiter.Request{Org: "acme"})
		if !errors.Is(err, limiter.ErrClosed) || d.Allowed != want || d.Reason != "internal_fault" {
			t.Errorf("on_internal_error %s: %+v, %v, want allowed %v and the error that it is closed", onError, d, err, want)
		}
	}
}

func TestTheMetaLimitBoundsATenantWhateverItsOtherLimitsSay(t *testing.T) {
	l := limiting(t, parse(t, roomy+"meta_limit: 5\n"))
	next := func(int) (*limiter.Limiter, limiter.Request) { return l, limiter.Request{Org: "acme"} }
	if n := allowed(t, 200, next); n < 5 || n > 100 {
		t.Errorf("%d of 200 requests at once were allowed of 5 a second", n)
	}
}

func TestFaultsOfAConfigAreReturnedAllAtOnceWithTheirPaths(t *testing.T) {
	for text, want := range map[string][]string{
		"tiers: [{name: a, limits: [{name: x, scope: tenant, limit: 0, window_size: 0}]}]\nmode: off": {
			"tiers[0].limits[0].limit", "tiers[0].limits[0].window_size", "mode",
		},
		`{"tiers": 7}`: {"tiers"},
		"a: [":         {"parse the config"},
		"1: 2":         {"keys must be strings"},
		"":             {"config"},
		"tiers: [{name: a, limits: [{name: x, scope: tenant, limit: 1000000000000, window_size: 31622399, " +
			"algorithm: sliding_window}]}]": {"tiers[0].limits[0]"},
	} {
		_, err := limiter.Parse([]byte(text))
		if err == nil {
			t.Errorf("%q was parsed", text)
			continue
		}
		for _, path := range want {
			assert.True(t, strings.Contains(err.Error(), path), "%q: %v: want it to name %s", text, err, path)
		}
	}
	var faults schema.Faults
	if _, err := limiter.New(limiter.Options{Config: schema.Config{Mode: "off"}}); !errors.As(err, &faults) {
		t.Errorf("%v: want faults", err)
	}
	if _, err := limiter.New(limiter.Options{LeaseShare: 6}); err == nil {
		t.Error("a lease share of 6 percent was accepted")
	}
	_, err := limiter.New(limiter.Options{Database: "postgres://node:secret@[/"})
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "connection string") {
		t.Errorf("%v: want that the connection string cannot be parsed, without a part of it", err)
	}
	redis := schema.Config{
		Strategy: schema.StrategyRedis, Redis: schema.Redis{Host: "127.0.0.1", SSL: true, CACert: "/no/such/file"},
	}
	if _, err := limiter.New(limiter.Options{Config: redis}); err == nil {
		t.Error("a certificate that cannot be read was accepted")
	}
}

func TestALibraryCallerReadsWhichLimitBindsAndItsClientsReadTheirOwn(t *testing.T) {
	l := limiting(t, parse(t, `
tiers: [{name: a, limits: [{name: own, scope: tenant, limit: 9, window_size: 60}]}]
global: {limits: [{name: all, scope: global, limit: 2, window_size: 600}]}
`))
	for _, allowed := range []bool{true, true, false} {
		d := acquire(t, l, limiter.Request{Org: "acme"})
		if d.Allowed != allowed || d.Policy != "all" || d.Limit != 2 {
			t.Errorf("allowed %v by %s of %d, want %v by all of 2", d.Allowed, d.Policy, d.Limit, allowed)
		}
		for _, s := range d.Statuses {
			assert.Equal(t, s.Policy == "all", s.Shared, "%s: shared", s.Policy)
		}
		for _, h := range d.Headers {
			if h.Name == "X-RateLimit-Limit" && h.Value != "9" ||
				h.Name == "RateLimit-Policy" && strings.Contains(h.Value, "all") {
				t.Errorf("clients read %s: %s of the shared limit", h.Name, h.Value)
			}
		}
	}
}
