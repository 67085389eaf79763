package engine

import (
	"context"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/candidate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// besideCandidate returns a decider of four bounds, one of them of a row, that tries a candidate (nil: none is open) in
// memory.
func besideCandidate(tb testing.TB, set *policy.CandidateSet) (*admit.Decider, *candidate.Evaluator) {
	tb.Helper()
	decider, _ := benchDecider(tb, 4)
	row := schema.Policy{Tier: "a", Limit: schema.Limit{Name: "l0", Scope: "tenant", Limit: 1_000_000_000, WindowSize: 1}}
	snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{{ID: 1, Policy: row}}}, nil)
	if set != nil {
		row.Limit.Limit /= 2
		set.Rows = []policy.CandidateRow{{Policy: row}}
		snapshot, faults = snapshot.WithCandidate(set)
	}
	if len(faults) > 0 {
		tb.Fatal(faults)
	}
	evaluator := candidate.New(candidate.Options{})
	tried := memory.New(memory.Options{Now: process.BucketClock.Now})
	decider.Candidates = evaluator.View(func() (candidate.Buckets, error) {
		return candidate.Buckets{Buckets: tried, Release: func() {}}, nil
	})
	decider.Policies.Store(decider.Policies.Load().With(snapshot))
	return decider, evaluator
}

var benchCandidates = map[string]func() *policy.CandidateSet{
	"none":     func() *policy.CandidateSet { return nil },
	"open":     func() *policy.CandidateSet { return &policy.CandidateSet{Name: "spring"} },
	"assigned": func() *policy.CandidateSet { return &policy.CandidateSet{Name: "spring", Percent: 100} },
}

func TestADecisionBesideACandidateAllocatesNothing(t *testing.T) {
	for name, set := range benchCandidates {
		decider, evaluator := besideCandidate(t, set())
		var x admit.Exchange
		facts, ctx := &fixedFacts{"acme"}, context.Background()
		admit := func() {
			if err := decider.Admit(ctx, facts, &x); err != nil || x.Response.Denied {
				t.Fatal("denied", err)
			}
		}
		for range 5000 { // so that the queue has its memory, which it keeps
			admit()
		}
		if got := testing.AllocsPerRun(1000, admit); got != 0 {
			t.Errorf("%s: %g allocations for a decision, want 0", name, got)
		}
		if s := evaluator.Stats(); (s.Waiting > 0) != (name == "open") || (s.Enforced.Admitted > 0) != (name == "assigned") {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
