package pgstore_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestOnlyPoliciesThatARequestCanMeetTogetherAreCompared(t *testing.T) {
	shared := pgstore.Policy{Name: "all", Tier: "gold", Scope: "global", Limit: 4, WindowSize: 60}
	own := pgstore.Policy{Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 60}
	for name, c := range map[string]struct {
		of    func(*pgstore.Policy)
		locks bool
	}{
		"of the same tier":     {func(p *pgstore.Policy) { p.Tier = "gold" }, true},
		"of another tier":      {func(p *pgstore.Policy) { p.Tier = "silver" }, false},
		"of a tenant":          {func(p *pgstore.Policy) { p.Tenant = "acme" }, true},
		"in another namespace": {func(p *pgstore.Policy) { p.Tier, p.Namespace = "gold", "other" }, false},
		"that allows less":     {func(p *pgstore.Policy) { p.Tier, p.Limit = "gold", 3 }, false},
	} {
		other := own
		c.of(&other)
		if why := pgstore.LocksOut(shared, []pgstore.Policy{other}); (why != "") != c.locks {
			t.Errorf("beside a limit %s: %q, want a fault: %t", name, why, c.locks)
		}
	}
}

func TestAListWithoutRowsIsEmptyAndNotAbsent(t *testing.T) {
	s, _ := open(t)
	if list, err := s.Policies(t.Context(), pgstore.PolicyFilter{}); err != nil || list == nil {
		t.Errorf("no policies are listed as %#v (%v), want an empty list", list, err)
	}
	if list, err := s.Overrides(t.Context(), pgstore.OverrideFilter{}); err != nil || list == nil {
		t.Errorf("no overrides are listed as %#v (%v), want an empty list", list, err)
	}
	if list, err := s.Tenants(t.Context(), pgstore.TenantFilter{}); err != nil || list == nil {
		t.Errorf("no tenants are listed as %#v (%v), want an empty list", list, err)
	}
}
