package rows_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// ofTargets has a policy of one name for each target but a tier.
func ofTargets() []rows.Policy {
	var list []rows.Policy
	for _, target := range []schema.Policy{
		{Tenant: "acme"},
		{Tenant: "acme", User: "u_42"},
		{Credential: "key"},
		{IP: "192.0.2.0/24"},
		{IP: "192.0.2.7"},
		{For: schema.ForAnonymous},
		{For: schema.ForAll},
	} {
		target.Limit = schema.Limit{Name: "daily", Scope: target.DefaultScope(), Limit: 10, WindowSize: 60}
		list = append(list, rows.Policy{Policy: target})
	}
	return list
}

func TestPoliciesOfEveryTargetAreWrittenFoundAppliedAndDeleted(t *testing.T) {
	s, _ := open(t)
	for _, p := range ofTargets() {
		put(t, s, p)
		p.Limit.Limit = 20
		row, _, err := s.PutPolicy(t.Context(), ann, p)
		if err != nil || row.Limit.Limit != 20 || row.Tier != "" || row.Revision != 2 || row.Key() != p.Key() {
			t.Errorf("%s is %+v after a second write (%v)", p.Key(), row, err)
		}
	}
	set := rows.Set{Policies: ofTargets()}
	d, err := s.Diff(t.Context(), set)
	if err != nil || len(d.Update) != len(set.Policies) || len(d.Create)+len(d.Delete) > 0 {
		t.Errorf("the difference is %+v (%v), want an update of each", d, err)
	}
	_, _, err = s.Apply(t.Context(), ann, set)
	require.NoError(t, err)
	if d, err := s.Diff(t.Context(), set); err != nil || !d.Empty() {
		t.Errorf("after apply the difference is %+v (%v)", d, err)
	}
	for _, p := range ofTargets() {
		assert.NoError(t, drop(t, s, ann, p), "delete %s", p.Key())
	}
	if list, err := s.Policies(t.Context(), rows.PolicyFilter{}); err != nil || len(list) > 0 {
		t.Errorf("%d policies are left (%v)", len(list), err)
	}
}

func TestANetworkOfAPolicyHasOneSpelling(t *testing.T) {
	s, _ := open(t)
	p := ofTargets()[3]
	put(t, s, p)
	for _, same := range []string{"::ffff:192.0.2.0/120", "192.0.2.9/24"} {
		p.IP, p.Revision = same, rows.Absent
		if _, _, err := s.PutPolicy(t.Context(), ann, p); !errors.As(err, new(*rows.ConflictError)) {
			t.Errorf("%s: %v, want a conflict with 192.0.2.0/24", same, err)
		}
	}
}

func TestOnlyALimitThatCanDenyAllTenantsNeedsForce(t *testing.T) {
	s, _ := open(t)
	put(t, s, rows.Policy{Policy: schema.Policy{Tenant: "acme", Limit: schema.Limit{
		Name: "own", Scope: "tenant", Limit: 100, WindowSize: 60,
	}}})
	for _, p := range ofTargets() {
		if p.Name = "new"; p.IP != "" || p.For != "" {
			p.Scope = schema.ScopeGlobal
		}
		review, err := s.Review(t.Context(), nil, "", p)
		if isLocked := len(review.LockOuts) > 0; err != nil || isLocked != (p.For == schema.ForAll) {
			t.Errorf("%s: the review is %+v (%v)", p.Key(), review, err)
		}
	}
}

func TestAPolicyForAllThatReplacesALimitOfATierIsWarnedOf(t *testing.T) {
	s, _ := open(t)
	daily := schema.Limit{Name: "daily", Scope: "tenant", Limit: 10, WindowSize: 60}
	config, err := resolve.FromConfig(schema.Config{
		Tiers: []schema.Tier{{Name: "gold", Limits: []schema.Limit{daily}}},
	}.WithDefaults())
	require.NoError(t, err)
	list := ofTargets()
	for _, c := range []struct {
		policy rows.Policy
		want   string
	}{{list[len(list)-1], "replaces the limit of this name of tier gold"}, {list[1], "user_from is empty"}} {
		review, err := s.Review(t.Context(), config, "", c.policy)
		if err != nil || !slices.ContainsFunc(review.Warnings, func(w string) bool { return strings.Contains(w, c.want) }) {
			t.Errorf("%s: %+v (%v), want a warning of %q", c.policy.Key(), review, err, c.want)
		}
	}
}

func TestACandidatePutsPoliciesOfEveryTarget(t *testing.T) {
	s, _ := open(t)
	for _, p := range ofTargets() {
		put(t, s, p)
	}
	before := activeRows(t, s)
	changed := ofTargets()
	for i := range changed {
		changed[i].Limit.Limit = 30
	}
	candidate(t, s, july, changed...)
	promote(t, s)
	for key, p := range activeRows(t, s) {
		if _, isOld := before[key]; p.Limit.Limit != 30 || !isOld {
			t.Errorf("%s has a limit of %d after the promotion", key, p.Limit.Limit)
		}
	}
	_, _, err := s.RollBackCandidate(t.Context(), ann, july)
	require.NoError(t, err)
	assert.Equal(t, before, activeRows(t, s), "after the rollback the policies")
}
