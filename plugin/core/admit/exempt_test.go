package admit_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
	overridden(t, decider, schema.Override{Kind: policy.Ban})
	if d := sendTo(t, decider, request, &x); d.Reason != decision.Banned || !x.Response.Denied || buckets.takes != 0 {
		t.Errorf("banned: %s", describe(d))
	}
}

// A doubled header hides who a request is from, and so the bans of its tenant.
func TestADoubledTrustedHeaderIsDeniedForExemptRequestsToo(t *testing.T) {
	request := ofTier("trial", "u", "GET", "/healthz")
	decider, buckets, _ := deciderOf(t, exempting())
	overridden(t, decider, schema.Override{Kind: policy.Ban})
	var x admit.Exchange
	request.Repeated = "X-User-Id"
	d := sendTo(t, decider, request, &x)
	if d.Reason != decision.HeaderRepeated || !x.Response.Denied || buckets.takes != 0 {
		t.Errorf("%s, denied %v", describe(d), x.Response.Denied)
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
	if used := buckets.used(decider.Policies.Load()); used["all"] != 3 {
		t.Errorf("the limit per address counts %d preflights, want 3", used["all"])
	}
}

func TestAPreflightSpendsNothingOfItsTenant(t *testing.T) {
	decider, buckets, _ := deciderOf(t, exempting())
	var x admit.Exchange
	for range 3 {
		sendTo(t, decider, preflightOf(ofTier("trial", "u", "", "/records")), &x)
	}
	if used := buckets.used(decider.Policies.Load()); used["daily"] != 0 || used["all"] != 3 {
		t.Errorf("used is %v, want 3 of the limit per address alone", used)
	}
}

func TestAPreflightWithARepeatedHeaderIsDenied(t *testing.T) {
	decider, _, _ := deciderOf(t, exempting())
	request := preflightOf(anonymous)
	request.Repeated = "X-User-Id"
	var x admit.Exchange
	if d := sendTo(t, decider, request, &x); d.Reason != decision.HeaderRepeated || !x.Response.Denied {
		t.Errorf("it is %s", describe(d))
	}
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
		if !slices.Equal(g.rounds, want) {
			t.Errorf("%s: read %011b, want %011b", method, g.rounds, want)
		}
	}
}

func TestExemptionsAllocateNothing(t *testing.T) {
	office := ofTier("paid", "u", "GET", "/records")
	office.IP = "10.1.2.3"
	for name, request := range map[string]identity.Request{
		"exempt": office, "not exempt": ofTier("internal", "u", "GET", "/records"), "a preflight": preflightOf(anonymous),
	} {
		decider, _, _ := deciderOf(t, exempting())
		decider.Observers = nil
		var x admit.Exchange
		g := gateway{request: request, rounds: make([]identity.Facts, 0, 8)}
		ctx := context.Background()
		if got := testing.AllocsPerRun(100, func() {
			g.rounds = g.rounds[:0]
			require.NoError(t, decider.Admit(ctx, &g, &x))
		}); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}
