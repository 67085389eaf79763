package rows_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// TestOperatorsAtOnceNeverPromoteOverChangesTheyHaveNotSeen has operators change policies, change a candidate, promote,
// roll back and rebase it at random, at once. Afterwards the audit shows that each promotion was made from its base.
func TestOperatorsAtOnceNeverPromoteOverChangesTheyHaveNotSeen(t *testing.T) {
	s, pool := open(t)
	const operators, steps = 6, 40
	var all errgroup.Group
	for i := range operators {
		all.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for range steps {
				if err := randomStep(t, s, random); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	var promotions, unseen int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.audit
		WHERE kind = 'candidate' AND after ->> 'state' = 'promoted'`).Scan(&promotions); err != nil || promotions == 0 {
		t.Fatalf("%d promotions (%v): the test shows nothing", promotions, err)
	}
	// Between the base of a promotion and the promotion, no policy has changed for good.
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM rate_limiter.audit p
		CROSS JOIN LATERAL (
			SELECT (array_agg(a.before ORDER BY a.id))[1] - '{id,revision}'::text[] AS before,
				(array_agg(a.after ORDER BY a.id DESC))[1] - '{id,revision}'::text[] AS after
			FROM rate_limiter.audit a
			WHERE a.kind = 'policy' AND a.id > (p.after ->> 'base_audit')::bigint AND a.version < p.version
			GROUP BY coalesce(a.before, a.after) ->> 'name'
		) changed
		WHERE p.kind = 'candidate' AND p.after ->> 'state' = 'promoted' AND p.before ->> 'state' = 'open'
		AND changed.before IS DISTINCT FROM changed.after`).Scan(&unseen); err != nil || unseen != 0 {
		t.Errorf("%d policies have changed between the base of a promotion and the promotion (%v)", unseen, err)
	}
	wantEachPromotionToHaveItsPolicies(t, pool)
}

// wantEachPromotionToHaveItsPolicies checks that the policies of a candidate were in force in the version of its
// promotion.
func wantEachPromotionToHaveItsPolicies(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var different int
	if err := pool.QueryRow(t.Context(), `SELECT count(*)
		FROM rate_limiter.audit p JOIN rate_limiter.candidate_policies c ON c.candidate = p.key
		CROSS JOIN LATERAL (
			SELECT (array_agg(a.after ORDER BY a.id DESC))[1] AS after FROM rate_limiter.audit a
			WHERE a.kind = 'policy' AND a.version <= p.version AND coalesce(a.before, a.after) ->> 'name' = c.name
		) last
		WHERE p.kind = 'candidate' AND p.after ->> 'state' = 'promoted' AND p.before ->> 'state' = 'open'
		AND (last.after ->> 'limit') IS DISTINCT FROM (c.body ->> 'limit')`).
		Scan(&different); err != nil || different != 0 {
		t.Errorf("%d policies of promoted candidates were not in force (%v)", different, err)
	}
}

// randomStep does one thing that an operator may do. Conflicts and missing rows are no errors.
func randomStep(t *testing.T, s *rows.DB, random *rand.Rand) error {
	p := named("a", "b", "c")[random.IntN(3)]
	p.Limit.Limit = 1 + random.Int64N(3)
	open, err := s.CandidateDiff(t.Context(), "")
	name := open.Candidate.Name
	switch step := random.IntN(10); {
	case err != nil:
		_, _, err = s.CreateCandidate(t.Context(), ann, fmt.Sprint("c", random.Int64()))
	case step == 0:
		_, _, err = s.PutPolicy(t.Context(), ann, p)
	case step == 1:
		err = drop(t, s, ann, p)
	case step < 5:
		_, _, err = s.PutCandidatePolicies(t.Context(), ann, name, p)
	case step == 5:
		_, _, err = s.DeleteCandidatePolicy(t.Context(), ann, name, p.Key())
	case step < 8:
		_, _, err = s.PromoteCandidate(t.Context(), ann, name, rows.Promotion{})
	case step == 8:
		_, _, err = s.RebaseCandidate(t.Context(), ann, name, open.Version)
	default:
		var list []rows.Candidate
		if list, err = s.Candidates(t.Context()); err == nil {
			_, _, err = s.RollBackCandidate(t.Context(), ann, list[len(list)-1].Name)
		}
	}
	if errors.As(err, new(*rows.ConflictError)) || errors.As(err, new(*rows.NotFoundError)) ||
		errors.As(err, new(*rows.InvalidError)) {
		return nil
	}
	return err
}
