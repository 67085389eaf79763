package candidate_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/settle"
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

func TestWhatACandidateReservesIsSettledWithTheRequest(t *testing.T) {
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
	both, more := snapshot.WithCandidate(&policy.CandidateSet{Name: "spring", Rows: []policy.CandidateRow{
		{Policy: settling(500, "X-Billed")}, // which the active policy does not read
	}})
	if len(faults)+len(more) > 0 {
		t.Fatal(faults, more)
	}
	r.Policies.Store(r.Policies.Load().With(both))
	table := reservation.New(reservation.Options{Elapsed: now, Now: now})
	keeper := table.Keeper(r.active, nil, func() {})
	defer keeper.Close()
	r.Reservations = keeper
	r.evaluator.SetReservations(table)
	tried := memory.New(memory.Options{Now: now})
	r.tried.Store = tried
	r.run(t)
	r.send(t, "zen", 1)
	r.until(t, "it is tried", func(s candidate.Stats) bool { return s.Candidate.Admitted == 1 })
	if err := table.Settle(t.Context(), r.x.Reservation, logPhase{"x-used": "30", "x-billed": "70"}); err != nil {
		t.Fatal(err)
	}
	used := func(plan *policy.Plan, namespace string, buckets *memory.Store) int64 {
		t.Helper()
		var resolution policy.Resolution
		plan.ResolveAt(&r.x.Decision.Identity, now(), &resolution)
		resolution.Bounds[0].Key.Namespace = namespace
		statuses := make([]decision.Status, 1)
		if err := buckets.Peek(context.Background(), resolution.Bounds, statuses); err != nil {
			t.Fatal(err)
		}
		return statuses[0].Used
	}
	plan := r.Policies.Load()
	if got := used(plan, "default", r.active); got != 30 {
		t.Errorf("the active bucket has %d tokens spent, want the 30 used", got)
	}
	deadline := time.Now().Add(patience)
	for tick := time.NewTicker(time.Millisecond); used(plan.Candidate().Plan, plan.Candidate().Namespace, tried) != 70; {
		if <-tick.C; time.Now().After(deadline) {
			t.Fatal("the candidate's bucket does not have the 70 tokens spent that its rule measures")
		}
	}
	if table.Follow(r.x.Reservation, settle.Needs{}, nil) {
		t.Error("a settled reservation is followed")
	}
}
