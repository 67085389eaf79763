package identity_test

import (
	"reflect"
	"testing"

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
	if got := g.identify(t, callerRules()); !reflect.DeepEqual(got, want) {
		t.Errorf("identity is %+v,\nwant %+v", got, want)
	}
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
		if got := g.identify(t, rules); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: identity is %+v,\nwant %+v", test.name, got, test.want)
		}
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
		if got := g.identify(t, rules).Cost; got != want {
			t.Errorf("a cost of %d counts as %d, want %d", cost, got, want)
		}
		rules.CallerCost = false
		if got := g.identify(t, rules).Cost; got != 0 {
			t.Errorf("a cost of %d counts as %d where no limit is charged, want 0", cost, got)
		}
	}
}
