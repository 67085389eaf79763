package admit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

const (
	consumer    = identity.ConsumerFact
	credential  = identity.CredentialFact
	ip          = identity.IPFact
	headers     = identity.HeaderFacts
	target      = identity.TargetFact
	route       = identity.RouteFact
	contentType = identity.ContentTypeFact
)

// twoTiers has room for two requests of a trial tenant, and for two of an address.
const twoTiers = `
observe_endpoint: false
user_from: [header.X-User-Id]
trusted_headers: [X-User-Id]
on_missing_user: %user%
on_missing_tenant: %tenant%
on_internal_error: %error%
mode: %mode%
tiers:
- name: trial
  limits:
  - {name: daily, scope: tenant, limit: 2, window_size: 86400, algorithm: fixed_window}
- name: paid
  limits:
  - {name: daily, scope: tenant, limit: 9, window_size: 86400, algorithm: fixed_window}
  - {name: writes, scope: user, endpoint: "POST /records", limit: 1, window_size: 60}
  - {name: candidate, scope: tenant, limit: 1, window_size: 60, mode: shadow}
- name: internal
anonymous: {limits: [{name: per-ip, scope: ip, limit: 2, window_size: 60}]}
`

// config returns twoTiers filled in: pairs of a placeholder and its value, over the defaults.
func config(pairs ...string) string {
	pairs = append(pairs, "%user%", "credential", "%tenant%", "limit_by_ip", "%error%", "open", "%mode%", "enforce")
	return strings.NewReplacer(pairs...).Replace(twoTiers)
}

func ofTier(tier, user, method, path string) identity.Request {
	return identity.Request{
		Consumer: identity.Consumer{CustomID: "acme", Tags: []string{"tier:" + tier}}, CredentialID: "k-1", IP: "192.0.2.1",
		Headers: []string{user}, Method: method, Path: path, HTTP2: true, GRPCRoute: true, ContentType: "application/grpc",
	}
}

func overHTTP1(r identity.Request) identity.Request {
	r.HTTP2 = false
	return r
}

func toRESTRoute(r identity.Request) identity.Request {
	r.GRPCRoute = false
	return r
}

// byTenant needs neither method nor path.
const (
	byTenant         = "observe_endpoint: false\n" + byTenantObserved
	byTenantObserved = `tiers:
- name: trial
  limits: [{name: daily, scope: tenant, limit: 2, window_size: 86400, algorithm: fixed_window}]`
)

var anonymous = identity.Request{IP: "192.0.2.9", Headers: []string{""}, Method: "GET", Path: "/"}

func TestNoMoreFactsAreReadThanTheDecisionNeeds(t *testing.T) {
	const every = consumer | headers | target
	tests := []struct {
		name    string
		config  string
		request identity.Request
		spent   int // requests before this one
		denied  bool
		rounds  []identity.Facts
	}{
		{"allowed", config(), ofTier("trial", "u", "GET", "/"), 0, false, []identity.Facts{every}},
		{
			"allowed by the credential", config(), ofTier("paid", "", "POST", "/records"), 0, false,
			[]identity.Facts{every, credential},
		},
		{"allowed, anonymous", config(), anonymous, 0, false, []identity.Facts{every, ip}},
		{
			"a denied gRPC call", config(), ofTier("trial", "u", "POST", "/"), 2, true,
			[]identity.Facts{every, route, contentType},
		},
		{
			"a denied POST over HTTP/1.1 is no gRPC call", config(), overHTTP1(ofTier("trial", "u", "POST", "/")), 2, true,
			[]identity.Facts{every},
		},
		{
			"a denied POST to a route without gRPC is no gRPC call", config(), toRESTRoute(ofTier("trial", "u", "POST", "/")),
			2, true,
			[]identity.Facts{every, route},
		},
		{"a denied GET is no gRPC call", config(), ofTier("trial", "u", "GET", "/"), 2, true, []identity.Facts{every}},
		{
			"a denied gRPC call whose method is not read", byTenant, ofTier("", "", "POST", "/"), 2, true,
			[]identity.Facts{consumer, route, target | contentType},
		},
		{
			"a denied GET whose method is not read", byTenant, ofTier("", "", "GET", "/"), 2, true,
			[]identity.Facts{consumer, route, target | contentType},
		},
		{
			"a denied one to a route without gRPC whose method is not read", byTenant, toRESTRoute(ofTier("", "", "POST", "/")),
			2, true,
			[]identity.Facts{consumer, route},
		},
		{"denied, anonymous", config(), anonymous, 2, true, []identity.Facts{every, ip}},
		{"denied without a tenant", config("%tenant%", "deny"), anonymous, 0, true, []identity.Facts{every}},
		{
			"denied without a user", config("%user%", "deny"), ofTier("paid", "", "POST", "/records"), 0, true,
			[]identity.Facts{every, route, contentType},
		},
		{
			"allowed and its endpoint observed", byTenantObserved, ofTier("", "", "POST", "/"), 0, false,
			[]identity.Facts{consumer | route},
		},
		{
			"denied and its endpoint observed", byTenantObserved, toRESTRoute(ofTier("", "", "POST", "/")), 2, true,
			[]identity.Facts{consumer | route},
		},
		{"no limits", `{observe_endpoint: false}`, anonymous, 0, false, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			decider, _, _ := deciderOf(t, test.config)
			var x admit.Exchange
			for range test.spent {
				admitted(t, decider, &gateway{request: test.request}, &x)
			}
			g := gateway{request: test.request}
			if err := decider.Admit(context.Background(), &g, &x); err != nil || x.Response.Denied != test.denied {
				t.Errorf("denied %v, %v, want %v", x.Response.Denied, err, test.denied)
			}
			assert.Equal(t, test.rounds, g.rounds, "read %08b, want %08b", g.rounds, test.rounds)
		})
	}
}

// admitted admits one request and fails the test if it is denied.
func admitted(t *testing.T, decider *admit.Decider, g *gateway, x *admit.Exchange) {
	t.Helper()
	if err := decider.Admit(context.Background(), g, x); err != nil || x.Response.Denied {
		t.Fatalf("denied %v, %v: %s", x.Response.Denied, err, read(&x.Response))
	}
}

func TestADenialForItsIdentitySpendsNothing(t *testing.T) {
	tests := []struct {
		name    string
		config  string
		request identity.Request
		reason  decision.Reason
	}{
		{"no tenant", config("%tenant%", "deny"), anonymous, decision.TenantMissing},
		{"no user", config("%user%", "deny"), overHTTP1(ofTier("paid", "", "POST", "/records")), decision.UserMissing},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			decider, buckets, observed := deciderOf(t, test.config)
			var x admit.Exchange
			require.NoError(t, decider.Admit(context.Background(), &gateway{request: test.request}, &x))
			if !x.Response.Denied || x.Response.Status != 403 || x.Decision.Reason != test.reason || buckets.takes != 0 {
				t.Errorf("%d takes and %s, want 403 because of %s", buckets.takes, read(&x.Response), test.reason)
			}
			assert.Len(t, *observed, 1, "decisions were observed, want one")
		})
	}
}

func TestAUserIsDemandedOnlyWhereALimitPerUserApplies(t *testing.T) {
	decider, _, _ := deciderOf(t, config("%user%", "deny"))
	for _, request := range []identity.Request{
		ofTier("paid", "", "GET", "/records"), ofTier("trial", "", "POST", "/records"),
		ofTier("internal", "", "POST", "/records"), anonymous,
	} {
		var x admit.Exchange
		admitted(t, decider, &gateway{request: request}, &x)
	}
}

func TestAConfigInShadowDeniesNoRequest(t *testing.T) {
	for _, mode := range []string{"shadow", "log"} {
		decider, buckets, observed := deciderOf(t, config("%mode%", mode, "%user%", "deny", "%tenant%", "deny"))
		requests := []identity.Request{anonymous, ofTier("paid", "", "POST", "/records")}
		requests = append(requests, slices.Repeat([]identity.Request{ofTier("trial", "u", "GET", "/")}, 3)...)
		var x admit.Exchange
		for _, request := range requests {
			admitted(t, decider, &gateway{request: request}, &x)
		}
		if !x.Decision.ShadowDenied || x.Decision.Result != decision.Allowed || buckets.takes != 4 ||
			len(*observed) != len(requests) {
			t.Errorf("%s: %d takes, %d observed, the last %s", mode, buckets.takes, len(*observed), describe(&x.Decision))
		}
	}
}

func TestWithoutLimitsNothingIsTakenAndNoHeaderSent(t *testing.T) {
	decider, buckets, observed := deciderOf(t, config())
	var x admit.Exchange
	admitted(t, decider, &gateway{request: ofTier("internal", "", "GET", "/")}, &x)
	if buckets.takes != 0 || len(x.Response.Headers) != 0 || len(*observed) != 1 {
		t.Errorf("%d takes, headers %q, %d observed, want none, none and one",
			buckets.takes, x.Response.Headers, len(*observed))
	}
}

func TestWhatCannotBeDecidedIsAnsweredAsOnInternalErrorSays(t *testing.T) {
	tests := []struct {
		name      string
		failAt    int
		takeErr   error
		request   identity.Request
		operation string
	}{
		{"the first round fails", 1, nil, ofTier("trial", "u", "GET", "/"), "read facts: "},
		{"the second round fails", 2, nil, anonymous, "read facts: "},
		{"the buckets fail", 0, errUnavailable, ofTier("paid", "u", "GET", "/"), "take 2 bounds: "},
	}
	for _, test := range tests {
		for _, mode := range []string{"open", "closed"} {
			t.Run(test.name+", "+mode, func(t *testing.T) {
				decider, buckets, observed := deciderOf(t, config("%error%", mode))
				var x admit.Exchange
				admitted(t, decider, &gateway{request: ofTier("trial", "u", "GET", "/")}, &x) // its traces must be gone
				*observed, buckets.err = nil, test.takeErr
				err := decider.Admit(context.Background(), &gateway{request: test.request, failAt: test.failAt}, &x)
				if !errors.Is(err, errUnavailable) || err.Error() != test.operation+errUnavailable.Error() {
					t.Errorf("error is %v, want %s%v", err, test.operation, errUnavailable)
				}
				if denied := mode == "closed"; x.Response.Denied != denied || (denied && x.Response.Status != 503) {
					t.Errorf("on_internal_error %s: client reads %s", mode, read(&x.Response))
				}
				if x.Decision.Reason != decision.InternalFault || x.Response.Get("X-RateLimit-Limit") != "" ||
					len(x.Decision.Resolution.Bounds) != 0 {
					t.Errorf("decision is %s", describe(&x.Decision))
				}
				if len(*observed) != 0 {
					t.Errorf("observed a decision that was not made: %s", (*observed)[0])
				}
			})
		}
	}
}

func TestADenialStandsWhenItsContentTypeCannotBeRead(t *testing.T) {
	decider, buckets, observed := deciderOf(t, config("%error%", "open"))
	var x admit.Exchange
	request := ofTier("trial", "u", "POST", "/")
	admitted(t, decider, &gateway{request: request}, &x)
	admitted(t, decider, &gateway{request: request}, &x)
	err := decider.Admit(context.Background(), &gateway{request: request, failAt: 2}, &x)
	if !errors.Is(err, errUnavailable) || !x.Response.Denied || x.Response.Status != 429 ||
		x.Response.Get("Content-Type") != "application/problem+json" {
		t.Errorf("error %v, client reads %s, want a denial with 429 all the same", err, read(&x.Response))
	}
	if len(*observed) != 3 || buckets.takes != 3 {
		t.Errorf("%d decisions of %d takes were observed, want 3", len(*observed), buckets.takes)
	}
}

func TestAConfigThatCannotBeUsedIsAnsweredWithoutLimits(t *testing.T) {
	decider, _, _ := deciderOf(t, config())
	for deny, want := range map[bool]int{false: 0, true: 503} {
		var x admit.Exchange
		admitted(t, decider, &gateway{request: ofTier("trial", "u", "GET", "/")}, &x)
		g := gateway{request: ofTier("trial", "u", "GET", "/")}
		if err := admit.Unconfigured(context.Background(), &g, deny, &x); err != nil || (len(g.rounds) == 0) == deny {
			t.Errorf("deny %v: read %08b, %v; want facts read for a denial only", deny, g.rounds, err)
		}
		if x.Response.Denied != deny || x.Response.Status != want || x.Decision.Reason != decision.ConfigFault ||
			x.Response.Get("RateLimit") != "" {
			t.Errorf("deny %v: client reads %s", deny, read(&x.Response))
		}
	}
}

func TestAGRPCCallThatCannotBeDecidedIsUnavailable(t *testing.T) {
	call := ofTier("trial", "u", "POST", "/")
	var x admit.Exchange
	for name, deny := range map[string]func() error{
		"no usable config": func() error {
			return admit.Unconfigured(context.Background(), &gateway{request: call}, true, &x)
		},
		"buckets that fail": func() error {
			decider, buckets, _ := deciderOf(t, config("%error%", "closed"))
			buckets.err = errUnavailable
			if err := decider.Admit(context.Background(), &gateway{request: call}, &x); !errors.Is(err, errUnavailable) {
				return fmt.Errorf("%w, want %w", err, errUnavailable)
			}
			return nil
		},
	} {
		assert.NoError(t, deny(), "%s", name)
		if !x.Response.Denied || x.Response.Status != 200 || x.Response.Get("grpc-status") != "14" ||
			len(x.Response.Body) > 0 {
			t.Errorf("%s: client reads %s, want 200 and UNAVAILABLE", name, read(&x.Response))
		}
	}
}

func TestASharedLimitThatDeniesIsDecidedAndObservedInFullAndShownByName(t *testing.T) {
	const limits = `{tiers: [{name: a, limits: [{name: own, scope: tenant, limit: 9, window_size: 60}]}],
		global: {limits: [{name: all, scope: global, limit: 1, window_size: 600}]}`
	for shown, text := range map[string]string{"9": limits + `}`, "1": limits + `, show_shared_limits: true}`} {
		decider, _, observed := deciderOf(t, text)
		var x admit.Exchange
		for range 2 {
			require.NoError(t, decider.Admit(context.Background(), &gateway{request: ofTier("a", "", "GET", "/")}, &x))
		}
		if got := x.Response.Get("X-RateLimit-Limit"); !x.Response.Denied || got != shown ||
			x.Response.Get("Retry-After") != "600" {
			t.Errorf("denied %v, X-RateLimit-Limit %q, Retry-After %q, want %s",
				x.Response.Denied, got, x.Response.Get("Retry-After"), shown)
		}
		if d := &x.Decision; d.Resolution.Bounds[d.Binding].Policy.Name != "all" ||
			!strings.Contains((*observed)[1], "binding 1") {
			t.Errorf("observed %s, want the shared limit that binds", (*observed)[1])
		}
	}
}

func TestTheAddressOfARequestIsReadAtADenialUnlessItIsKnown(t *testing.T) {
	const address = identity.IPFact
	request := toRESTRoute(ofTier("", "", "POST", "/"))
	for _, test := range []struct {
		name, config, ip, want string
		spent                  int
		rounds                 []identity.Facts
	}{
		{"allowed", byTenant, "192.0.2.7", "", 0, []identity.Facts{consumer}},
		{"denied", byTenant, "192.0.2.7", "192.0.2.7", 2, []identity.Facts{consumer, route | address}},
		{"denied, of IPv6", byTenant, "2001:db8::7", "2001:db8::/64", 2, []identity.Facts{consumer, route | address}},
		{"denied, on a unix socket", byTenant, "", "", 2, []identity.Facts{consumer, route | address}},
		{"denied in shadow", byTenant + "\nmode: shadow", "192.0.2.7", "192.0.2.7", 2, []identity.Facts{consumer, address}},
	} {
		t.Run(test.name, func(t *testing.T) {
			decider, _, _ := deciderOf(t, test.config)
			decider.AtDenial = address
			request := request
			request.IP = test.ip
			var x admit.Exchange
			for range test.spent {
				admitted(t, decider, &gateway{request: request}, &x)
			}
			g := gateway{request: request}
			if err := decider.Admit(context.Background(), &g, &x); err != nil || x.Decision.Identity.IP != test.want {
				t.Errorf("the decision is about the address %q (%v), want %q", x.Decision.Identity.IP, err, test.want)
			}
			assert.Equal(t, test.rounds, g.rounds, "read %010b, want %010b", g.rounds, test.rounds)
		})
	}
}

func TestTheIDOfARequestIsReadAtADenialOnlyWithTheFirstRound(t *testing.T) {
	const requestID = identity.RequestIDFact
	const shadowed = byTenant + "\nmode: shadow"
	request := toRESTRoute(ofTier("", "", "POST", "/"))
	request.ID = "e6d8f4a1"
	for _, test := range []struct {
		name   string
		config string
		wanted bool
		spent  int
		id     string
		rounds []identity.Facts
	}{
		{"allowed", byTenant, true, 0, "", []identity.Facts{consumer}},
		{"denied", byTenant, true, 2, "e6d8f4a1", []identity.Facts{consumer, route | requestID}},
		{"denied, the route known", byTenantObserved, true, 2, "e6d8f4a1", []identity.Facts{consumer | route, requestID}},
		{"denied in shadow", shadowed, true, 2, "e6d8f4a1", []identity.Facts{consumer, requestID}},
		{"denied, the id not wanted", byTenant, false, 2, "", []identity.Facts{consumer, route}},
	} {
		t.Run(test.name, func(t *testing.T) {
			decider, _, _ := deciderOf(t, test.config)
			if test.wanted {
				decider.AtDenial = requestID
			}
			var x admit.Exchange
			for range test.spent {
				admitted(t, decider, &gateway{request: request}, &x)
			}
			g := gateway{request: request}
			if err := decider.Admit(context.Background(), &g, &x); err != nil || x.Decision.RequestID != test.id {
				t.Errorf("the decision is about request %q (%v), want %q", x.Decision.RequestID, err, test.id)
			}
			assert.Equal(t, test.rounds, g.rounds, "read %010b, want %010b", g.rounds, test.rounds)
		})
	}
}
