package pgstore_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/pgstore"
)

func TestTenantIsSetReadListedAndDeleted(t *testing.T) {
	s, _ := open(t)
	for _, tenant := range []pgstore.Tenant{
		{ID: "acme", Tier: "gold", TimeZone: "Europe/Berlin"},
		{ID: "Beta", Tier: "gold"},
		{ID: "corp"},
	} {
		written, _, err := s.SetTenant(t.Context(), ann, tenant)
		if tenant.Revision = 1; err != nil || written != tenant {
			t.Errorf("set %+v: %+v (%v)", tenant, written, err)
		}
		if read, err := s.Tenant(t.Context(), tenant.ID); err != nil || read != tenant {
			t.Errorf("%s is read as %+v (%v), want %+v", tenant.ID, read, err, tenant)
		}
	}
	var gold []string
	for tenant, err := range s.EachTenant(t.Context(), pgstore.TenantFilter{Tier: "gold", After: "Beta"}) {
		if err != nil {
			t.Fatal(err)
		}
		gold = append(gold, tenant.ID)
	}
	if len(gold) != 1 || gold[0] != "acme" {
		t.Errorf("gold tenants after Beta are %v, want acme", gold)
	}
	if _, err := s.DeleteTenant(t.Context(), ann, "acme", 0); err != nil {
		t.Error(err)
	}
	_, err := s.Tenant(t.Context(), "acme")
	wantMissing(t, "read after the delete", err)
	_, err = s.DeleteTenant(t.Context(), ann, "acme", 0)
	wantMissing(t, "a second delete", err)
}

func TestTenantIsNotSetFromAnotherRevision(t *testing.T) {
	s, _ := open(t)
	for range 2 { // the second write changes nothing
		if _, version, err := s.SetTenant(t.Context(), ann, pgstore.Tenant{ID: "acme", Tier: "gold"}); err != nil ||
			version != 1 {
			t.Fatalf("version %d (%v), want 1", version, err)
		}
	}
	silver, version, err := s.SetTenant(t.Context(), ann, pgstore.Tenant{ID: "acme", Tier: "silver", Revision: 1})
	if err != nil || version != 2 || silver.Revision != 2 {
		t.Errorf("from revision 1: %+v in version %d (%v)", silver, version, err)
	}
	_, _, err = s.SetTenant(t.Context(), ann, pgstore.Tenant{ID: "acme", Tier: "tin", Revision: 1})
	wantConflict(t, "from revision 1 again", err)
}

func TestErrorOfAnInvalidTenantNamesTheField(t *testing.T) {
	s, _ := open(t)
	for field, tenant := range map[string]pgstore.Tenant{
		"id":        {},
		"time_zone": {ID: "acme", TimeZone: "Europe/Atlantis"},
	} {
		_, _, err := s.SetTenant(t.Context(), ann, tenant)
		wantInvalid(t, field, err, field)
	}
	_, _, err := s.SetTenant(t.Context(), ann, pgstore.Tenant{ID: "acme", TimeZone: "Local"})
	wantInvalid(t, "the zone of one machine", err, "time_zone")
}

func TestTierIsPutListedAndDeleted(t *testing.T) {
	s, _ := open(t)
	for _, tier := range []pgstore.Tier{
		{Name: "silver"},
		{Name: "gold"},
		{Name: "gold", Description: "large customers", Revision: 1},
	} {
		if _, _, err := s.PutTier(t.Context(), ann, tier); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.PutTier(t.Context(), ann, pgstore.Tier{Name: "gold", Revision: 1})
	wantConflict(t, "put from revision 1 again", err)
	tiers, err := s.Tiers(t.Context())
	if want := (pgstore.Tier{Name: "gold", Description: "large customers", Revision: 2}); err != nil ||
		len(tiers) != 2 || tiers[0] != want {
		t.Errorf("the tiers are %v (%v), want gold first: %v", tiers, err, want)
	}
	if _, err := s.DeleteTier(t.Context(), ann, "gold", 2); err != nil {
		t.Error(err)
	}
	_, err = s.DeleteTier(t.Context(), ann, "gold", 0)
	wantMissing(t, "a second delete", err)
}
