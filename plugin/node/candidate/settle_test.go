package candidate_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// logPhase is what the log phase of a request says.
type logPhase map[string]string

func (l logPhase) Read(_ context.Context, needs settle.Needs, a *settle.Answer) error {
	a.Status, a.Source, a.Tried, a.Headers = 200, settle.SourceService, true, map[string]string{}
	for _, header := range needs.Headers {
		a.Headers[header] = l[strings.ToLower(header)]
	}
	return nil
}

// settlingTrial is a trial of a limit that settles by X-Used, and by X-Billed under the candidate.
type settlingTrial struct {
	*trial
	table  *reservation.Ledger
	stored *memory.Store // of the candidate
}

func newSettlingTrial(t *testing.T, assigned ...string) settlingTrial {
	t.Helper()
	r := newTrial(t, candidate.Options{})
	settling := func(quantity int64, header string) schema.Policy {
		p := daily("tokens", quantity)
		p.Settle = &schema.Settle{
			Sources: []schema.SettleSource{{From: "header." + header, Weight: 1}}, Reserve: 100, Timeout: 60,
		}
		return p
	}
	snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{
		{ID: 1, Policy: settling(1000, "X-Used")},
	}}, nil)
	set := &policy.CandidateSet{Name: "spring", Tenants: assigned, Rows: []policy.CandidateRow{
		{Policy: settling(500, "X-Billed")}, // which the active policy does not read
	}}
	both, more := snapshot.WithCandidate(set)
	if len(faults)+len(more) > 0 {
		t.Fatal(faults, more)
	}
	r.Policies.Store(r.Policies.Load().With(both))
	table := reservation.New(reservation.Options{Elapsed: now, Now: now})
	keeper := table.Keeper(r.active, nil, func() {})
	t.Cleanup(keeper.Close)
	r.Reservations = keeper
	r.evaluator.SetReservations(table)
	stored := memory.New(memory.Options{Now: now})
	r.tried.Store = stored
	r.run(t)
	return settlingTrial{r, table, stored}
}

// used returns how many tokens of a plan's only limit the last request's tenant has spent.
func (r settlingTrial) used(t *testing.T, plan *resolve.Plan, namespace string, buckets *memory.Store) int64 {
	t.Helper()
	var resolution resolve.Resolution
	plan.ResolveAt(&r.x.Decision.Identity, now(), &resolution)
	resolution.Bounds[0].Key.Namespace = namespace
	statuses := make([]decision.Status, 1)
	require.NoError(t, buckets.Peek(context.Background(), resolution.Bounds, statuses))
	return statuses[0].Used
}

func TestARequestOfAnAssignedTenantSettlesByTheCandidateInTheActiveBucket(t *testing.T) {
	r := newSettlingTrial(t, "acme")
	r.send(t, "acme", 1)
	plan := r.Policies.Load()
	if got := r.used(t, plan, "default", r.active); got != 100 {
		t.Errorf("the active bucket has %d tokens spent, want the 100 reserved", got)
	}
	require.NoError(t, r.table.Settle(t.Context(), r.x.Reservation, logPhase{"x-used": "30", "x-billed": "70"}))
	if got := r.used(t, plan, "default", r.active); got != 70 {
		t.Errorf("the active bucket has %d tokens spent, want the 70 that the candidate's rule measures", got)
	}
	if got := r.used(t, plan.Candidate().Plan, plan.Candidate().Namespace, r.stored); got != 0 {
		t.Errorf("the candidate's own bucket has %d tokens spent, want none", got)
	}
}

// The request began under the candidate, and ends when the active policies decide for its tenant again.
func TestAReservationOutlivesTheAssignmentOfItsTenant(t *testing.T) {
	r := newSettlingTrial(t, "acme")
	r.send(t, "acme", 1)
	plan := r.Policies.Load()
	r.Policies.Store(newSettlingTrial(t).Policies.Load())
	require.NoError(t, r.table.Settle(t.Context(), r.x.Reservation, logPhase{"x-used": "30", "x-billed": "70"}))
	if got := r.used(t, plan, "default", r.active); got != 70 {
		t.Errorf("the active bucket has %d tokens spent, want 70", got)
	}
}

func TestWhatACandidateReservesIsSettledWithTheRequest(t *testing.T) {
	r := newSettlingTrial(t)
	r.send(t, "zen", 1)
	r.until(t, "it is tried", func(s candidate.Stats) bool { return s.Candidate.Admitted == 1 })
	require.NoError(t, r.table.Settle(t.Context(), r.x.Reservation, logPhase{"x-used": "30", "x-billed": "70"}))
	plan := r.Policies.Load()
	if got := r.used(t, plan, "default", r.active); got != 30 {
		t.Errorf("the active bucket has %d tokens spent, want the 30 used", got)
	}
	own := plan.Candidate()
	await.That(t, "the candidate's bucket has the 70 tokens spent that its rule measures", func() bool {
		return r.used(t, own.Plan, own.Namespace, r.stored) == 70
	})
	assert.False(t, r.table.Follow(r.x.Reservation, settle.Needs{}, nil), "a settled reservation is followed")
}
