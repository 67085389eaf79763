package rows_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestPutReplacesThePolicyOfTheSameKeyOnly(t *testing.T) {
	s, _ := open(t)
	p := daily()
	p.Endpoint = "GET /records/{id}"
	first, _ := put(t, s, p)
	p.Endpoint, p.Limit.Limit = "GET /records/{record}", 2000
	second, version := put(t, s, p)
	if second.ID != first.ID || second.Limit.Limit != 2000 || second.Endpoint != p.Endpoint ||
		second.Revision != 2 || version != 2 {
		t.Errorf("the second put leaves %+v in version %d, want the same row with its values", second, version)
	}
	put(t, s, daily())
	if all, err := s.Policies(t.Context(), rows.PolicyFilter{}); err != nil || len(all) != 2 {
		t.Errorf("the policies are %v (%v), want one for the endpoint and one for all", all, err)
	}
	if one, err := s.Policies(t.Context(), rows.PolicyFilter{Endpoint: "GET /records/{whatever}"}); err != nil ||
		len(one) != 1 || one[0] != second {
		t.Errorf("the policies for the endpoint are %v (%v), want the one", one, err)
	}
}

func TestAWriteByIDCannotChangeTheKey(t *testing.T) {
	s, _ := open(t)
	p, _ := put(t, s, daily())
	for field, rename := range map[string]func(*rows.Policy){
		"namespace": func(p *rows.Policy) { p.Namespace = "eu" },
		"name":      func(p *rows.Policy) { p.Name = "weekly" },
		"tier":      func(p *rows.Policy) { p.Tier = "silver" },
		"tenant":    func(p *rows.Policy) { p.Tenant = "acme" },
		"endpoint":  func(p *rows.Policy) { p.Endpoint = "GET /records" },
	} {
		renamed := p
		rename(&renamed)
		_, _, err := s.PutPolicyByID(t.Context(), ann, renamed)
		wantInvalid(t, field, err, field)
	}
	p = daily()
	p.Endpoint = "GET /records/{id}"
	p, _ = put(t, s, p)
	p.Endpoint = "GET /records/{record}" // the same key
	written, _, err := s.PutPolicyByID(t.Context(), ann, p)
	if err != nil || written.Endpoint != p.Endpoint {
		t.Errorf("another spelling is written as %+v (%v)", written, err)
	}
}

func TestAWriteMayRequireThatARowIsAbsentOrPresent(t *testing.T) {
	s, _ := open(t)
	p := daily()
	p.Revision = rows.Present
	_, _, err := s.PutPolicy(t.Context(), ann, p)
	wantMissing(t, "put over a policy that does not exist", err)
	p.Revision = rows.Absent
	created, _ := put(t, s, p)
	_, _, err = s.PutPolicy(t.Context(), ann, p)
	wantConflict(t, "create it again", err)
	if conflict := new(rows.ConflictError); !errors.As(err, &conflict) || conflict.Revision != created.Revision {
		t.Errorf("%v has another revision, want %d", err, created.Revision)
	}
	p.Revision, p.Limit.Limit = rows.Present, 2000
	if written, _ := put(t, s, p); written.Revision != 2 || written.Limit.Limit != 2000 {
		t.Errorf("put over it leaves %+v", written)
	}
	_, err = rows.Delete[rows.Policy](t.Context(), s, ann, created.ID, created.Revision)
	wantConflict(t, "delete of revision 1", err)

	acme := rows.Tenant{Tenant: schema.Tenant{ID: "acme"}, Revision: rows.Present}
	_, _, err = s.SetTenant(t.Context(), ann, acme)
	wantMissing(t, "set a tenant that does not exist", err)
	acme.Revision = rows.Absent
	_, _, err = s.SetTenant(t.Context(), ann, acme)
	assert.NoError(t, err)
	_, _, err = s.SetTenant(t.Context(), ann, acme)
	wantConflict(t, "create the tenant again", err)
	acme.Revision, acme.Tier = rows.Present, "gold"
	_, _, err = s.SetTenant(t.Context(), ann, acme)
	assert.NoError(t, err)
}

func TestTextThatPostgresCannotStoreIsInvalid(t *testing.T) {
	s, _ := open(t)
	_, _, err := s.SetTenant(t.Context(), ann, rows.Tenant{Tenant: schema.Tenant{ID: "a\x00b"}})
	wantInvalid(t, "a zero byte", err, "id")
	p := daily()
	p.Endpoint = "GET /\x00"
	_, _, err = s.PutPolicy(t.Context(), ann, p)
	wantInvalid(t, "a zero byte in a policy", err, "")
}

func TestWritesNeedAnActorAndAReason(t *testing.T) {
	s, _ := open(t)
	_, _, err := s.PutPolicy(t.Context(), rows.Change{Reason: "why"}, daily())
	wantInvalid(t, "no actor", err, "actor")
	_, _, err = s.PutPolicy(t.Context(), rows.Change{Actor: "ann", Reason: " "}, daily())
	wantInvalid(t, "a blank reason", err, "reason")
}
