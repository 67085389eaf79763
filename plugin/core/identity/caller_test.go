package identity_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

// callerRules read all names and the cost from the caller.
func callerRules() *identity.Rules {
	rules := &identity.Rules{
		Tenant: []identity.Source{identity.CallerTenant}, User: []identity.Source{identity.CallerUser},
		Tier:       []identity.Source{identity.CallerTier},
		NeedTenant: true, NeedUser: true, CostHeader: -1, CallerCost: true, IPv6Prefix: 64,
	}
	rules.Compile(0)
	return rules
}

func TestACallersNamesAndCostAreReadFromTheCallerAlone(t *testing.T) {
	g := gateway{Request: identity.Request{
		Caller:   identity.Caller{Tenant: "acme", User: "u_42", Tier: "gold", Cost: 7},
		Consumer: identity.Consumer{ID: "c", Username: "u", CustomID: "globex", Tags: []string{"tier:free"}},
		Headers:  []string{"initech"}, Token: token(hs256, `{"sub":"u_1"}`),
	}}
	want := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Tier: "gold",
		User: identity.Name{Kind: identity.User, ID: "u_42"}, Cost: 7,
	}
	assert.Equal(t, want, g.identify(t, callerRules()), "identity")
	g.wantRounds(t, identity.CallerFacts)
}

func TestANameThatACallerDoesNotStateIsMissing(t *testing.T) {
	for _, test := range []struct {
		name   string
		caller identity.Caller
		want   identity.Identity
		facts  []identity.Facts
	}{
		{
			"no tenant",
			identity.Caller{User: "u_42", Tier: "gold"},
			identity.Identity{Anonymous: true, TenantDenied: true},
			[]identity.Facts{identity.CallerFacts},
		},
		{
			"no user",
			identity.Caller{Tenant: "acme"},
			identity.Identity{
				Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, UserMissing: true,
				User: identity.Name{Kind: identity.IP, ID: "192.0.2.1"}, IP: "192.0.2.1",
			},
			[]identity.Facts{identity.CallerFacts, ip},
		},
	} {
		rules := callerRules()
		rules.OnMissingTenant, rules.OnMissingUser = identity.Deny, identity.ByIP
		g := gateway{Request: identity.Request{Caller: test.caller, IP: "192.0.2.1"}}
		assert.Equal(t, test.want, g.identify(t, rules), "%s: identity", test.name)
		g.wantRounds(t, test.facts...)
	}
}

func TestACallersCostIsAPositiveNumberUpToItsMaximum(t *testing.T) {
	for cost, want := range map[int64]int64{
		-1 << 63: 0, -1: 0, 0: 0, 1: 1, identity.MaxCallerCost: identity.MaxCallerCost,
		identity.MaxCallerCost + 1: identity.MaxCallerCost, 1<<63 - 1: identity.MaxCallerCost,
	} {
		g := gateway{Request: identity.Request{Caller: identity.Caller{Tenant: "acme", Cost: cost}}}
		rules := callerRules()
		rules.OnMissingUser = identity.Skip
		assert.Equal(t, want, g.identify(t, rules).Cost, "a cost of %d counts as", cost)
		rules.CallerCost = false
		got := g.identify(t, rules).Cost
		assert.True(t, got == 0, "a cost of %d counts as %d where no limit is charged, want 0", cost, got)
	}
}

const (
	target    = identity.TargetFact
	preflight = identity.PreflightFacts
)

func TestAPreflightIsAnOPTIONSRequestWithOneOriginAndOneMethod(t *testing.T) {
	for name, test := range map[string]struct {
		method, origin, requested string
		want                      bool
	}{
		"complete":                  {"OPTIONS", "https://app.example", "PUT", true},
		"from an opaque origin":     {"OPTIONS", "null", "X-CUSTOM", true},
		"without an origin":         {"OPTIONS", "", "PUT", false},
		"without a method":          {"OPTIONS", "https://app.example", "", false},
		"without both":              {"OPTIONS", "", "", false},
		"with two origins":          {"OPTIONS", "https://a.example, https://b.example", "PUT", false},
		"with two methods":          {"OPTIONS", "https://app.example", "PUT, GET", false},
		"with a method of no token": {"OPTIONS", "https://app.example", "PUT ", false},
		"of another method":         {"GET", "https://app.example", "PUT", false},
		"of a method in lower case": {"options", "https://app.example", "PUT", false},
	} {
		rules := &identity.Rules{CostHeader: -1, NeedPreflight: true}
		rules.Compile(target)
		g := gateway{Request: identity.Request{Method: test.method, Origin: test.origin, RequestedMethod: test.requested}}
		assert.Equal(t, test.want, g.identify(t, rules).Preflight, "a request %s is a preflight", name)
		want := []identity.Facts{target}
		if test.method == "OPTIONS" {
			want = append(want, preflight)
		}
		g.wantRounds(t, want...)
	}
}

func TestTheHeadersOfAPreflightAreNotReadUnlessPreflightsAreExempt(t *testing.T) {
	rules := &identity.Rules{CostHeader: -1}
	rules.Compile(target)
	g := gateway{Request: identity.Request{Method: "OPTIONS", Origin: "https://app.example", RequestedMethod: "PUT"}}
	assert.False(t, g.identify(t, rules).Preflight, "it is a preflight")
	g.wantRounds(t, target)
}

func TestAnExemptionSeesTheWholeAddressWhereLimitsSeeItsPrefix(t *testing.T) {
	for ip, want := range map[string]string{
		"192.0.2.7":            "192.0.2.7",
		"::ffff:192.0.2.7":     "192.0.2.7",
		"2001:db8::7":          "2001:db8::7",
		"2001:db8::7%eth0":     "2001:db8::7",
		"":                     "invalid IP",
		"unix:":                "invalid IP",
		"192.0.2.7, 192.0.2.8": "invalid IP",
	} {
		rules := &identity.Rules{CostHeader: -1, IPv6Prefix: 64, NeedAddress: true}
		rules.Compile(identity.IPFact)
		g := gateway{Request: identity.Request{IP: ip}}
		assert.Equal(t, want, g.identify(t, rules).Address.String(), "the address of %q", ip)
	}
}

func TestTheTagsOfAnAnonymousConsumerExemptNothing(t *testing.T) {
	tags := []string{"internal", "tier:gold"}
	for username, want := range map[string][]string{"acme": tags, "anonymous": nil} {
		rules := &identity.Rules{CostHeader: -1, NeedTags: true, Anonymous: []string{"anonymous"}}
		rules.Compile(consumer)
		g := gateway{Request: identity.Request{Consumer: identity.Consumer{Username: username, Tags: tags}}}
		assert.Equal(t, want, g.identify(t, rules).Tags, "tags of %s", username)
	}
}

func TestANameThatOnlyExemptionsSeekIsNotMissing(t *testing.T) {
	rules := &identity.Rules{
		CostHeader: -1, SeekTenant: true, SeekUser: true, OnMissingTenant: identity.ByIP,
		OnMissingUser: identity.ByCredential, Anonymous: []string{"anonymous"},
	}
	rules.Tenant, rules.User = parse(t, rules, "consumer.username"), parse(t, rules, "jwt.sub")
	rules.Compile(0)
	acme, user := identity.Name{Kind: identity.Tenant, ID: "acme"}, identity.Name{Kind: identity.User, ID: "u_42"}
	for _, test := range []struct {
		username, claims string
		tenant, user     identity.Name
	}{
		{"acme", `{"sub":"u_42"}`, acme, user},
		{"acme", `{}`, acme, identity.Name{}},
		{"", `{"sub":"u_42"}`, identity.Name{}, identity.Name{}},
		{"anonymous", `{"sub":"u_42"}`, identity.Name{}, identity.Name{}},
	} {
		g := gateway{Request: identity.Request{
			Consumer: identity.Consumer{Username: test.username}, Token: token(hs256, test.claims),
		}}
		id := g.identify(t, rules)
		if id.Tenant != test.tenant || id.User != test.user || id.Anonymous || id.UserMissing {
			t.Errorf("%s with %s: identity is %+v", test.username, test.claims, id)
		}
		g.wantRounds(t, consumer|jwt)
	}
}
