package identity_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
)

const (
	consumer   = identity.ConsumerFact
	credential = identity.CredentialFact
	ip         = identity.IPFact
	jwt        = identity.TokenFact
	headers    = identity.HeaderFacts
)

func TestAMissingTenantIsTreatedAsTheRulesSay(t *testing.T) {
	named := identity.Request{Consumer: identity.Consumer{CustomID: "acme"}, IP: "203.0.113.9"}
	anonymous := identity.Request{IP: "203.0.113.9"}
	acme := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}}
	tests := []struct {
		name    string
		missing identity.Missing
		request identity.Request
		want    identity.Identity
		facts   []identity.Facts
	}{
		{"limit_by_ip, named", identity.ByIP, named, acme, []identity.Facts{consumer}},
		{"deny, named", identity.Deny, named, acme, []identity.Facts{consumer}},
		{"skip, named", identity.Skip, named, acme, []identity.Facts{consumer}},
		{"limit_by_ip", identity.ByIP, anonymous, identity.Identity{
			Tenant: identity.Name{Kind: identity.IP, ID: "203.0.113.9"}, IP: "203.0.113.9", Anonymous: true,
		}, []identity.Facts{consumer, ip}},
		{
			"deny", identity.Deny, anonymous, identity.Identity{Anonymous: true, TenantDenied: true}, []identity.Facts{consumer},
		},
		{"skip", identity.Skip, anonymous, identity.Identity{Anonymous: true}, []identity.Facts{consumer}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules := tenantRules(t, "consumer.custom_id")
			rules.OnMissingTenant = test.missing
			g := gateway{Request: test.request}
			assert.Equal(t, test.want, g.identify(t, rules), "identity")
			g.wantRounds(t, test.facts...)
		})
	}
}

func TestAMissingUserIsTreatedAsTheRulesSay(t *testing.T) {
	withUser := identity.Request{Token: token(hs256, `{"sub":"u_42"}`)}
	nameless := identity.Request{CredentialID: "k-1", IP: "2001:db8::7"}
	bare := identity.Request{IP: "2001:db8::7"}
	tests := []struct {
		name    string
		missing identity.Missing
		request identity.Request
		user    identity.Name
		denied  bool
		facts   []identity.Facts
	}{
		{
			"credential, named", identity.ByCredential, withUser,
			identity.Name{Kind: identity.User, ID: "u_42"},
			false,
			[]identity.Facts{consumer | jwt},
		},
		{
			"deny, named", identity.Deny, withUser,
			identity.Name{Kind: identity.User, ID: "u_42"},
			false,
			[]identity.Facts{consumer | jwt},
		},
		{
			"credential", identity.ByCredential, nameless,
			identity.Name{Kind: identity.Credential, ID: "k-1"},
			false,
			[]identity.Facts{consumer | jwt, credential},
		},
		{
			"credential, without one", identity.ByCredential, bare,
			identity.Name{Kind: identity.IP, ID: "2001:db8::/64"},
			false,
			[]identity.Facts{consumer | jwt, credential, ip},
		},
		{
			"ip", identity.ByIP, nameless,
			identity.Name{Kind: identity.IP, ID: "2001:db8::/64"},
			false,
			[]identity.Facts{consumer | jwt, ip},
		},
		{"skip", identity.Skip, nameless, identity.Name{}, false, []identity.Facts{consumer | jwt}},
		{"deny", identity.Deny, nameless, identity.Name{}, true, []identity.Facts{consumer | jwt}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules := &identity.Rules{
				NeedTenant: true, NeedUser: true, CostHeader: -1, IPv6Prefix: 64, OnMissingUser: test.missing,
			}
			rules.Tenant, rules.User = parse(t, rules, "consumer.custom_id"), parse(t, rules, "jwt.sub")
			rules.Compile(0)
			g := gateway{Request: test.request}
			g.Consumer.CustomID = "acme"
			id := g.identify(t, rules)
			if id.User != test.user || id.UserDenied != test.denied || id.UserMissing != (test.user.Kind != identity.User) {
				t.Errorf("user is %+v (missing %v, denied %v), want %+v (denied %v)",
					id.User, id.UserMissing, id.UserDenied, test.user, test.denied)
			}
			g.wantRounds(t, test.facts...)
		})
	}
}

func TestTheUserOfAnAnonymousRequestIsReadOnlyWhereItSharesTheTenantsLimits(t *testing.T) {
	for apart, want := range map[bool][]identity.Facts{
		false: {consumer | jwt, ip, credential},
		true:  {consumer | jwt, ip},
	} {
		rules := &identity.Rules{
			NeedTenant: true, NeedUser: true, CostHeader: -1, OnMissingTenant: identity.ByIP,
			OnMissingUser: identity.ByCredential, AnonymousLimits: apart,
		}
		rules.Tenant, rules.User = parse(t, rules, "consumer.custom_id"), parse(t, rules, "jwt.sub")
		rules.Compile(0)
		g := gateway{Request: identity.Request{IP: "192.0.2.1"}}
		id := g.identify(t, rules)
		g.wantRounds(t, want...)
		if id.Tenant != (identity.Name{Kind: identity.IP, ID: "192.0.2.1"}) || id.UserMissing == apart {
			t.Errorf("apart %v: identity is %+v", apart, id)
		}
	}
}

func TestNoFactIsReadWhenNoLimitNeedsAName(t *testing.T) {
	rules := &identity.Rules{CostHeader: -1}
	rules.Tenant, rules.User = parse(t, rules, "consumer.custom_id"), parse(t, rules, "jwt.sub")
	rules.Compile(0)
	g := gateway{Request: identity.Request{Consumer: identity.Consumer{CustomID: "acme"}}}
	id := g.identify(t, rules)
	assert.True(t, reflect.DeepEqual(id, identity.Identity{}), "identity is %+v, want an empty one", id)
	g.wantRounds(t)
}

func TestAllThatEveryRequestNeedsIsReadInOneRound(t *testing.T) {
	rules := &identity.Rules{NeedTenant: true, NeedUser: true, NeedCredential: true, CostHeader: -1}
	rules.Tenant = parse(t, rules, "consumer.custom_id", "header.X-Org")
	rules.User = parse(t, rules, "jwt.sub")
	rules.Tier = parse(t, rules, "consumer.tag.tier")
	rules.Compile(identity.TargetFact | identity.RouteFact | credential)
	g := gateway{Request: identity.Request{
		Consumer: identity.Consumer{CustomID: "acme", Tags: []string{"tier:gold"}}, CredentialID: "k-1",
		Headers: []string{""},
		Token:   token(hs256, `{"sub":"u_42"}`), Method: "GET", Path: "/records", Route: "records",
	}}
	want := identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Tier: "gold", TierSource: "consumer.tag.tier",
		User:       identity.Name{Kind: identity.User, ID: "u_42"},
		Credential: "k-1", Method: "GET", Path: "/records", Route: "records",
	}
	assert.Equal(t, want, g.identify(t, rules), "identity")
	g.wantRounds(t, consumer|credential|jwt|headers|identity.TargetFact|identity.RouteFact)
}

func TestLeavingACredentialOutIsCountedByAddress(t *testing.T) {
	rules := &identity.Rules{NeedTenant: true, NeedCredential: true, CostHeader: -1}
	rules.Tenant = parse(t, rules, "consumer.custom_id")
	rules.Compile(credential)
	request := identity.Request{Consumer: identity.Consumer{CustomID: "acme"}, IP: "192.0.2.1", CredentialID: "k-1"}

	g := gateway{Request: request}
	if id := g.identify(t, rules); id.Credential != "k-1" || id.IP != "" {
		t.Errorf("identity is %+v, want credential k-1 and no address", id)
	}
	g.wantRounds(t, consumer|credential)

	request.CredentialID = ""
	g = gateway{Request: request}
	if id := g.identify(t, rules); id.Credential != "" || id.IP != "192.0.2.1" {
		t.Errorf("identity is %+v, want no credential and the address", id)
	}
	g.wantRounds(t, consumer|credential, ip)
}

func TestARequestOfAnAnonymousConsumerIsAnonymousEvenIfATrustedHeaderNamesATenant(t *testing.T) {
	for name, c := range map[string]identity.Consumer{
		"by username": {ID: "c-1", Username: "anonymous", CustomID: "all-anonymous", Tags: []string{"tier:enterprise"}},
		"by id":       {ID: "0000-anon", Username: "unnamed"},
	} {
		rules := tenantRules(t, "header.X-Org", "consumer.custom_id")
		rules.Anonymous = []string{"", "anonymous", "0000-anon"}
		rules.Tier = parse(t, rules, "consumer.tag.tier")
		g := gateway{Request: identity.Request{Consumer: c, Headers: []string{"acme"}}}
		if id := g.identify(t, rules); !id.Anonymous || id.Tenant.ID != "" || id.Tier != "" {
			t.Errorf("%s: identity is %+v, want an anonymous one", name, id)
		}
	}
	rules := tenantRules(t, "header.X-Org")
	rules.Anonymous = []string{""}
	g := gateway{Request: identity.Request{Headers: []string{"acme"}}}
	if id := g.identify(t, rules); id.Tenant.ID != "acme" {
		t.Errorf("without any consumer the tenant is %+v, want acme from the header", id.Tenant)
	}
}
