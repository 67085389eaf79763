package rows_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// statementCounter counts the statements of a pool.
type statementCounter struct {
	n    atomic.Int64
	pool *pgxpool.Pool
}

// TraceQueryStart implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData,
) context.Context {
	c.n.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// counted returns a store whose statements are counted.
func counted(t *testing.T) (*rows.DB, *statementCounter) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.Shared(t).Database(t))
	require.NoError(t, err)
	counter := new(statementCounter)
	config.ConnConfig.Tracer = counter
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	counter.pool = pool
	return rows.New(pool), counter
}

// statements returns how many statements the review and the put of policies of as many tenants take.
func (c *statementCounter) statements(t *testing.T, s *rows.DB, policies int, limit int64) int64 {
	t.Helper()
	list := make([]rows.Policy, policies)
	for i := range list {
		list[i] = limited(limit)
		list[i].Tier, list[i].Tenant = "", fmt.Sprint("tenant-", i)
	}
	before := c.n.Load()
	_, err := s.ReviewCandidate(t.Context(), nil, july, list...)
	require.NoError(t, err)
	_, _, err = s.PutCandidatePolicies(t.Context(), ann, july, list...)
	require.NoError(t, err)
	return c.n.Load() - before
}

// All writes wait for one another, so a put of many policies must not take a statement for each.
func TestTheStatementsOfAPutIntoACandidateDoNotGrowWithItsPolicies(t *testing.T) {
	s, counter := counted(t)
	candidate(t, s, july, daily())
	counter.statements(t, s, 3, 1) // connections prepare
	few, many := counter.statements(t, s, 3, 2), counter.statements(t, s, 300, 3)
	if again := counter.statements(t, s, 300, 4); many > few+2 || again > few+2 { // a connection may prepare one more
		t.Errorf("a put of 3 policies takes %d statements, one of 300 %d, and again %d", few, many, again)
	}
	row, err := s.Candidate(t.Context(), july)
	if err != nil || row.Policies != 301 {
		t.Errorf("the candidate changes %d policies (%v), want 301", row.Policies, err)
	}
}

func TestTheLargestCandidateIsPutAtOnceAndABanAppliesBesideIt(t *testing.T) {
	s, counter := counted(t)
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
	loaded, err := policysync.Load(t.Context(), counter.pool)
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
