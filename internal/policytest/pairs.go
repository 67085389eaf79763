package policytest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// WantShown fails the test unless changes of each declared field of a policy change what show returns. hidden has the
// fields that show leaves out, with the reason. So a test fails for a new field that is not shown. where is the code to
// change for it.
func WantShown(t *testing.T, where string, hidden map[string]string, show func(schema.Policy) string) {
	t.Helper()
	bases := append(Full(t), schema.Policy{Namespace: "a-namespace", Tier: "gold", Limit: schema.Limit{
		Name: "daily", Scope: schema.ScopeTenant, Limit: 10 * schema.LeastLeased, WindowSize: 60,
	}})
	for _, f := range schema.PolicyFields() {
		if len(f.OneOf) == 1 {
			continue // it has the same value in all policies
		}
		shown := slices.ContainsFunc(bases, func(p schema.Policy) bool { return isShown(&f, p, show) })
		switch reason := hidden[f.Name]; {
		case !shown && reason == "":
			t.Errorf("%s is not shown: show it in %s, or list it in this test with the reason. No valid change of it changes\n%s",
				f.Name, where, show(bases[0]))
		case shown && reason != "":
			t.Errorf("%s is shown, though it is hidden because %s", f.Name, reason)
		}
	}
}

// isShown reports whether a valid change of one field of p changes what show returns.
func isShown(f *schema.Field[schema.Policy], p schema.Policy, show func(schema.Policy) string) bool {
	for choice := 0; ; choice++ {
		after := p
		if !change(f, &after, choice) {
			return false
		}
		if len(policy.Faults(after)) == 0 && show(after) != show(p) {
			return true
		}
	}
}

// change gives a field of p another value, if there is one of that number.
func change(f *schema.Field[schema.Policy], p *schema.Policy, choice int) bool {
	switch field := f.In(p).(type) {
	case *string:
		texts := append([]string{*field + "x", "198.51.100.7", ""}, f.OneOf...)
		texts = slices.DeleteFunc(texts, func(text string) bool { return text == *field })
		if choice < len(texts) {
			*field = texts[choice]
		}
		return choice < len(texts)
	case *int64:
		*field = []int64{*field / 2, *field + 1, *field + 60}[min(choice, 2)]
		return choice < 3 && *field != 0
	case *bool:
		*field = !*field
	case **int64:
		*field = new(int64(7))
	case **schema.Settle:
		*field = nil
	case **schema.Fair:
		*field = nil
	}
	return choice == 0
}

// Resolve returns a plan whose only limit is p, and a request that policies of WantShown are for: its tenant, user,
// credential, address and tier.
func Resolve(t *testing.T, p schema.Policy) (plan *resolve.Plan, id identity.Identity) {
	t.Helper()
	snapshot, faults := policy.NewSnapshot(policy.Rows{
		Tiers: []policy.TierRow{{Name: "gold"}}, Policies: []policy.PolicyRow{{ID: 7, Policy: p}},
	}, nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	plan, err := resolve.FromConfig(schema.Config{Namespace: "a-namespace", Strategy: schema.StrategyRedis}.WithDefaults())
	require.NoError(t, err)
	return plan.With(snapshot), identity.Identity{
		Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, User: identity.Name{Kind: identity.User, ID: "u_42"},
		Credential: "a-credential", IP: "203.0.113.1", Tier: "gold", Method: "POST", Path: "/records", Route: "r",
	}
}
