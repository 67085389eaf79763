package rows_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// statements returns how many statements the review and the put of policies of as many tenants take.
func (q *queries) statements(t *testing.T, s *rows.DB, policies int, limit int64) int64 {
	t.Helper()
	list := make([]rows.Policy, policies)
	for i := range list {
		list[i] = limited(limit)
		list[i].Tier, list[i].Tenant = "", fmt.Sprint("tenant-", i)
	}
	before := q.made.Load()
	_, err := s.Review(t.Context(), nil, july, list...)
	require.NoError(t, err)
	_, _, err = s.PutCandidatePolicies(t.Context(), ann, july, list...)
	require.NoError(t, err)
	return q.made.Load() - before
}

func TestTheLargestCandidateIsPutAtOnceAndABanAppliesBesideIt(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	s, counter := traced(t, dsn)
	candidate(t, s, july)
	counter.statements(t, s, 1, 1) // connections prepare
	few := counter.statements(t, s, 1, 2)
	most := counter.statements(t, s, rows.MaxCandidatePolicies, 3)
	t.Logf("a put of %d policies takes %d statements, one of a policy %d", rows.MaxCandidatePolicies, most, few)
	if most > few+2 {
		t.Errorf("a put of %d policies takes %d statements, and one of a policy %d", rows.MaxCandidatePolicies, most, few)
	}
	_, _, err := s.PutCandidatePolicies(t.Context(), ann, july, daily())
	wantConflict(t, "one policy more", err)

	ban := rows.Override{Override: schema.Override{Kind: schema.KindBan, Tenant: "tenant-7", Permanent: true}}
	ban, _, err = s.AddOverride(t.Context(), ann, ban)
	require.NoError(t, err)
	loaded, err := policysync.Load(t.Context(), pgtest.Pool(t, dsn))
	require.NoError(t, err)
	snapshot, _ := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{{ID: ban.ID, Override: ban.Override}}}, nil)
	both, faults := snapshot.WithCandidate(loaded.Candidate)
	plan, err := resolve.FromConfig(schema.Config{}.WithDefaults())
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	tried := plan.With(both).Candidate().Plan
	for tenant, banned := range map[string]bool{"tenant-7": true, "tenant-8": false} {
		var r resolve.Resolution
		tried.ResolveAt(&identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: tenant}}, 0, &r)
		if r.Banned != banned || !banned && (len(r.Bounds) != 1 || r.Bounds[0].Policy.Limit.Spec().Quantity != 3) {
			t.Errorf("%s: banned %v, with the limits %+v", tenant, r.Banned, r.Bounds)
		}
	}
}
