package admit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// overridden puts an override on tenant acme beside the decider's config.
func overridden(t *testing.T, decider *admit.Decider, o schema.Override) {
	t.Helper()
	o.Tenant = "acme"
	rows := policy.Rows{Version: 1, Overrides: []policy.Override{policytest.Override(1, o)}}
	snapshot, faults := policy.NewSnapshot(rows, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	decider.Policies.Store(decider.Policies.Load().With(snapshot))
}

func TestABannedTenantIsDeniedWithoutSpendingUntilItsBanEnds(t *testing.T) {
	for name, test := range map[string]struct {
		expires limit.Micros
		denied  bool
		wait    limit.Micros
	}{
		"for good":       {0, true, limit.Never},
		"for a minute":   {now + 60*limit.Second, true, 60 * limit.Second},
		"until just now": {now, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			decider, buckets, observed := deciderOf(t, config())
			ban := schema.Override{Kind: schema.KindBan}
			if test.expires > 0 {
				ban.ExpiresAt = time.UnixMicro(int64(test.expires))
			}
			overridden(t, decider, ban)
			var x admit.Exchange
			require.NoError(t, decider.Admit(context.Background(), &gateway{request: ofTier("paid", "u", "GET", "/")}, &x))
			d := &x.Decision
			if x.Response.Denied != test.denied || d.RetryAfter != test.wait || (d.Reason == decision.Banned) != test.denied ||
				(buckets.takes == 0) != test.denied || len(*observed) != 1 {
				t.Errorf("%d takes, %s", buckets.takes, describe(d))
			}
		})
	}
}

func TestABanInAConfigThatDoesNotEnforceIsOnlyRecorded(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config("%mode%", "shadow"))
	overridden(t, decider, schema.Override{Kind: schema.KindBan})
	var x admit.Exchange
	admitted(t, decider, &gateway{request: ofTier("paid", "u", "GET", "/")}, &x)
	if d := &x.Decision; !d.ShadowDenied || d.ShadowReason != decision.Banned || buckets.takes != 1 {
		t.Errorf("%d takes, %s", buckets.takes, describe(d))
	}
}

func TestAnExemptTenantHasNoLimitsAndReadsNone(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config("%user%", "deny"))
	overridden(t, decider, schema.Override{Kind: schema.KindExempt})
	var x admit.Exchange
	for range 5 {
		admitted(t, decider, &gateway{request: ofTier("trial", "", "POST", "/records")}, &x)
	}
	if buckets.takes != 0 || len(x.Response.Headers) != 0 {
		t.Errorf("%d takes, client reads %s", buckets.takes, read(&x.Response))
	}
}

func TestTheMetaLimitDeniesATenantAheadOfItsPoliciesAndSparesOthers(t *testing.T) {
	decider, buckets, _ := deciderOf(t, config())
	meta, err := admit.NewMeta(2, "n", newShelf())
	require.NoError(t, err)
	decider.Meta = meta
	var x admit.Exchange
	for range 2 {
		admitted(t, decider, &gateway{request: ofTier("paid", "u", "GET", "/")}, &x)
	}
	require.NoError(t, decider.Admit(context.Background(), &gateway{request: ofTier("paid", "u", "GET", "/")}, &x))
	if d := &x.Decision; d.Reason != decision.MetaLimited || !x.Response.Denied || d.RetryAfter != limit.Second/2 ||
		buckets.takes != 2 {
		t.Errorf("%d takes, %s", buckets.takes, describe(d))
	}
	admitted(t, decider, &gateway{request: anonymous}, &x)
}

// exempting is twoTiers with exemptions, and a limit per address over all tenants.
func exempting(pairs ...string) string {
	return config(pairs...) + `
global: {limits: [{name: all, scope: ip, limit: 3, window_size: 60}]}
exempt_preflights: true
exempt: [{cidr: 10.0.0.0/8}, {tag: monitoring}, {endpoint: "GET /healthz"}, {tenant: internal}]
`
}

// preflightOf returns a request as a browser sends it before another one.
func preflightOf(r identity.Request) identity.Request {
	r.Method, r.Origin, r.RequestedMethod = "OPTIONS", "https://app.example", "POST"
	return r
}

// sendTo decides a request, and returns its decision.
func sendTo(t *testing.T, decider *admit.Decider, request identity.Request, x *admit.Exchange) *decision.Decision {
	t.Helper()
	require.NoError(t, decider.Admit(context.Background(), &gateway{request: request}, x))
	return &x.Decision
}

func TestAnExemptRequestTakesNothingCarriesNoHeadersAndNeedsNoNames(t *testing.T) {
	office := anonymous
	office.IP = "::ffff:10.1.2.3"
	monitor := ofTier("trial", "", "POST", "/records")
	monitor.Consumer.Tags = append(monitor.Consumer.Tags, "monitoring")
	internal := ofTier("trial", "", "POST", "/records")
	internal.Consumer.CustomID = "internal"
	health := anonymous
	health.Path = "/healthz"
	for source, request := range map[string]identity.Request{
		"exempt[0]": office, "exempt[1]": monitor, "exempt[2]": health, "exempt[3]": internal,
	} {
		decider, buckets, observed := deciderOf(t, exempting("%tenant%", "deny", "%user%", "deny"))
		var x admit.Exchange
		for range 9 {
			d := sendTo(t, decider, request, &x)
			if d.Denied() || d.Result != decision.Exempted || d.Resolution.Exemption.Source() != source {
				t.Fatalf("%s: exempt by %q: %s", source, d.Resolution.Exemption.Source(), describe(d))
			}
		}
		if buckets.takes != 0 || len(x.Response.Headers) != 0 || len(*observed) != 9 {
			t.Errorf("%s: %d takes, %d observed, client reads %s", source, buckets.takes, len(*observed), read(&x.Response))
		}
	}
}

func TestBansAndTheMetaLimitHoldForExemptRequests(t *testing.T) {
	request := ofTier("trial", "u", "GET", "/healthz")
	decider, buckets, _ := deciderOf(t, exempting())
	var x admit.Exchange
	meta, err := admit.NewMeta(1, "n", newShelf())
	require.NoError(t, err)
	decider.Meta = meta
	if d := sendTo(t, decider, request, &x); d.Result != decision.Exempted {
		t.Errorf("the first request: %s", describe(d))
	}
	if d := sendTo(t, decider, request, &x); d.Reason != decision.MetaLimited || !x.Response.Denied {
		t.Errorf("above the meta limit: %s", describe(d))
	}
	decider.Meta = nil
	overridden(t, decider, schema.Override{Kind: schema.KindBan})
	if d := sendTo(t, decider, request, &x); d.Reason != decision.Banned || !x.Response.Denied || buckets.takes != 0 {
		t.Errorf("banned: %s", describe(d))
	}
}

// A doubled header hides who a request is from, and so the bans of its tenant.
func TestADoubledTrustedHeaderIsDeniedForExemptRequestsToo(t *testing.T) {
	decider, buckets, _ := deciderOf(t, exempting())
	overridden(t, decider, schema.Override{Kind: schema.KindBan})
	for _, request := range []identity.Request{ofTier("trial", "u", "GET", "/healthz"), preflightOf(anonymous)} {
		var x admit.Exchange
		request.Repeated = "X-User-Id"
		d := sendTo(t, decider, request, &x)
		if d.Reason != decision.HeaderRepeated || !x.Response.Denied || buckets.takes != 0 {
			t.Errorf("%s, denied %v", describe(d), x.Response.Denied)
		}
	}
}

func TestAPreflightNeedsNoTenantButRoomInTheLimitsPerAddress(t *testing.T) {
	decider, buckets, _ := deciderOf(t, exempting("%tenant%", "deny"))
	var x admit.Exchange
	options := anonymous
	options.Method = "OPTIONS"
	if d := sendTo(t, decider, options, &x); d.Reason != decision.TenantMissing {
		t.Errorf("an OPTIONS request that is no preflight: %s", describe(d))
	}
	for range 3 {
		if d := sendTo(t, decider, preflightOf(anonymous), &x); d.Result != decision.Exempted {
			t.Fatalf("a preflight: %s", describe(d))
		}
	}
	if d := sendTo(t, decider, preflightOf(anonymous), &x); !d.Denied() || d.Result != decision.HardThrottled {
		t.Errorf("a preflight of an address without room: %s", describe(d))
	}
	used := buckets.used(decider.Policies.Load())
	assert.True(t, used["all"] == 3, "the limit per address counts %d preflights, want 3", used["all"])
}

func TestOnlyAnOPTIONSRequestIsLookedAtForAPreflight(t *testing.T) {
	decider, _, _ := deciderOf(t, `
observe_endpoint: false
exempt_preflights: true
global: {limits: [{name: all, scope: global, limit: 9, window_size: 60}]}`)
	for method, want := range map[string][]identity.Facts{
		"GET":     {target},
		"OPTIONS": {target, identity.PreflightFacts},
	} {
		g := gateway{request: identity.Request{Method: method, Path: "/"}}
		var x admit.Exchange
		admitted(t, decider, &g, &x)
		assert.Equal(t, want, g.rounds, "%s: read %011b, want %011b", method, g.rounds, want)
	}
}
