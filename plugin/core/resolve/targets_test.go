package resolve_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// targets has a row of one name for each target, the most specific first; the index is the quantity less 1.
var targets = []schema.Policy{
	{Tenant: "acme", User: "u1", Limit: schema.Limit{Scope: "user"}},
	{Credential: "key", Limit: schema.Limit{Scope: "credential"}},
	{IP: "::ffff:192.0.2.1", Limit: schema.Limit{Scope: "ip"}},
	{IP: "192.0.2.0/24", Limit: schema.Limit{Scope: "global"}},
	{IP: "::ffff:192.0.0.0/104", Limit: schema.Limit{Scope: "ip"}},
	{Tenant: "acme", Limit: schema.Limit{Scope: "tenant"}},
	{Tier: "bronze", Limit: schema.Limit{Scope: "tenant"}},
	{For: schema.ForAll, Limit: schema.Limit{Scope: "global"}},
}

func targetRows(list []schema.Policy) (rows policy.Rows) {
	for i, p := range list {
		p.Name, p.Limit.Limit, p.WindowSize = "daily", int64(i+1), 60
		rows.Policies = append(rows.Policies, policy.PolicyRow{ID: int64(i + 1), Policy: p})
	}
	return rows
}

// acmeUser is a request that all of targets are for.
func acmeUser() identity.Identity {
	return identity.Identity{
		Tenant: tenant("acme"), User: identity.Name{Kind: identity.User, ID: "u1"}, Tier: "bronze", Credential: "key",
		IP: "192.0.2.1", Route: "route", Method: "GET", Path: "/",
	}
}

func quantityOf(t *testing.T, r *resolve.Resolution, name string) (quantity int64) {
	t.Helper()
	for _, b := range r.Bounds {
		if b.Policy.Name == name {
			require.Zero(t, quantity, "two bounds are named %s", name)
			quantity = b.Policy.Limit.Spec().Quantity
		}
	}
	return quantity
}

func TestOfRowsWithOneNameTheMostSpecificTargetApplies(t *testing.T) {
	config := compile(t, modelConfig)
	for first := range targets {
		rows := targetRows(targets)
		rows.Policies = rows.Policies[first:]
		slices.Reverse(rows.Policies)
		plan, id := config.With(build(t, rows)), acmeUser()
		var r resolve.Resolution
		plan.ResolveAt(&id, 1, &r)
		if got := quantityOf(t, &r, "daily"); got != int64(first+1) {
			t.Errorf("without the first %d rows that of %s applies, want that of %s", first,
				targets[got-1].Target(), targets[first].Target())
		}
		won := slices.DeleteFunc(plan.Explain(&id, 1).Policies, func(x resolve.ExplainedPolicy) bool {
			return x.Name != "daily" || !x.Won
		})
		if len(won) != 1 || won[0].ID != int64(first+1) {
			t.Errorf("of those from %s on, %+v are explained as the winners", targets[first].Target(), won)
		}
	}
}

func TestRowsForAllRequestsStandBesideThoseOfTheTierAndReplaceTheConfigsOfTheirName(t *testing.T) {
	row := targets[7]
	row.Name, row.Limit.Limit, row.WindowSize = "all", 7, 1
	other := row
	other.Name, other.Namespace = "elsewhere", "other"
	rows := policy.Rows{Policies: []policy.PolicyRow{{ID: 1, Policy: row}, {ID: 2, Policy: other}}}
	plan := compile(t, modelConfig+"on_missing_tenant: skip").With(build(t, rows))
	for name, id := range map[string]identity.Identity{"a tenant's": acmeUser(), "another": {}} {
		var r resolve.Resolution
		plan.ResolveAt(&id, 1, &r)
		if got := quantityOf(t, &r, "all"); got != 7 || quantityOf(t, &r, "elsewhere") != 0 {
			t.Errorf("%s request has %d in total, want 7: %+v", name, got, r.Bounds)
		}
	}
}

func TestRowsForAnonymousRequestsGoBeforeTheConfigsAndAddToThem(t *testing.T) {
	perAddress := schema.Limit{Name: "daily", Scope: "ip", Limit: 7, WindowSize: 1}
	row := schema.Policy{For: schema.ForAnonymous, Limit: perAddress}
	more := row
	more.Name = "more"
	rows := policy.Rows{Policies: []policy.PolicyRow{{ID: 1, Policy: row}, {ID: 2, Policy: more}}}
	for _, config := range []string{
		modelConfig, modelConfig + "anonymous: {limits: [{name: daily, scope: ip, limit: 3, window_size: 1}]}",
	} {
		plan := compile(t, config).With(build(t, rows))
		id := identity.Identity{Anonymous: true, Tenant: address("192.0.2.1"), IP: "192.0.2.1"}
		var r resolve.Resolution
		plan.ResolveAt(&id, 1, &r)
		if quantityOf(t, &r, "daily") != 7 || quantityOf(t, &r, "more") != 7 || quantityOf(t, &r, "all") != 5000 {
			t.Errorf("an anonymous request has %+v", r.Bounds)
		}
		id = acmeUser()
		if plan.ResolveAt(&id, 1, &r); quantityOf(t, &r, "daily") != 100 || quantityOf(t, &r, "more") != 0 {
			t.Errorf("a tenant's request has %+v", r.Bounds)
		}
	}
}

func TestANetworkInTotalHasABucketOfItsOwnAndItsAddressesThoseOfTheConfig(t *testing.T) {
	plan := compile(t, modelConfig).With(build(t, targetRows(targets[2:4])))
	for ip, want := range map[string]policy.Key{
		"192.0.2.1": {Namespace: "default", Policy: "daily", Group: policy.ByIP, GroupID: "192.0.2.1"},
		"192.0.2.2": {Namespace: "default", Policy: "daily", Group: policy.ByAll, GroupID: "192.0.2.0/24"},
	} {
		id := acmeUser()
		id.IP = ip
		var r resolve.Resolution
		plan.ResolveAt(&id, 1, &r)
		assert.Equal(t, want, r.Bounds[0].Key, "%s spends from", ip)
	}
}

func TestAnIPv6NetworkAppliesIfAllAddressesThatAreCountedTogetherAreInIt(t *testing.T) {
	for network, want := range map[string]int64{
		"2001:db8::7": 1, "2001:db8::/64": 1, "2001:db8::/32": 1, "2001:db8:0:1::/64": 100, "2001:db8::/65": 100,
	} {
		rows := targetRows([]schema.Policy{{IP: network, Limit: schema.Limit{Scope: "ip"}}})
		plan := compile(t, modelConfig).With(build(t, rows))
		id := acmeUser()
		id.IP = "2001:db8::/64"
		var r resolve.Resolution
		if plan.ResolveAt(&id, 1, &r); quantityOf(t, &r, "daily") != want {
			t.Errorf("%s: %d, want %d", network, quantityOf(t, &r, "daily"), want)
		}
	}
}

func TestRowsOfATargetNeedItsFactAlone(t *testing.T) {
	const header = identity.HeaderFacts
	for i, want := range []identity.Facts{
		identity.ConsumerFact | header, identity.ConsumerFact | identity.CredentialFact, identity.IPFact, identity.IPFact,
		identity.IPFact, identity.ConsumerFact, identity.ConsumerFact, 0,
	} {
		config := compile(t, `{observe_endpoint: false, user_from: [header.X-User], trusted_headers: [X-User],
			on_missing_tenant: skip, tiers: [{name: bronze}]}`)
		plan := config.With(build(t, targetRows(targets[i:i+1])))
		if plan.Rules.Required != want || plan.Rules.NeedUser || plan.Rules.NeedCredential {
			t.Errorf("%s: reads facts %011b, want %011b; %+v", targets[i].Target(), plan.Rules.Required, want, plan.Rules)
		}
	}
}

func TestRowsThatNoRequestOfTheConfigMeetsAreFaultsOfThePlan(t *testing.T) {
	anonymous := schema.Policy{For: schema.ForAnonymous, Limit: schema.Limit{Scope: "ip"}}
	list := []schema.Policy{targets[0], targets[0], anonymous, {IP: "2001:db8::/56", Limit: schema.Limit{Scope: "ip"}}}
	list[1].User = "u2"
	snapshot := build(t, targetRows(list))
	blind := compile(t, `{ipv6_prefix_length: 48, on_missing_tenant: deny, tiers: [{name: bronze}]}`).With(snapshot)
	var fields []string
	for _, f := range blind.Faults() {
		fields = append(fields, f.Field)
	}
	if slices.Sort(fields); strings.Join(fields, " ") != "for ip user" {
		t.Errorf("the faults are %+v", blind.Faults())
	}
	seeing := compile(t, `{user_from: [header.X-User], trusted_headers: [X-User], tiers: [{name: bronze}]}`)
	faults := seeing.With(snapshot).Faults()
	assert.True(t, len(faults) <= 0, "under a config that reads them: %+v", faults)
}
