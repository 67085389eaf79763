package policy_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestASnapshotKeepsEveryFieldOfAPolicy(t *testing.T) {
	for _, p := range policytest.Full(t) {
		row := policy.PolicyRow{ID: 7, Policy: p}
		snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{row}}, nil)
		if got := slices.Collect(snapshot.Policies()); len(faults) > 0 || len(got) != 1 || !reflect.DeepEqual(got[0], row) {
			t.Errorf("%+v (%v), want %+v", got, faults, row)
		}
	}
}

func TestASnapshotKeepsEveryFieldOfAnOverride(t *testing.T) {
	for _, o := range policytest.FullOverrides(t) {
		row := policy.Override{ID: 7, Override: o}
		snapshot, faults := policy.NewSnapshot(policy.Rows{Overrides: []policy.Override{row}}, nil)
		got := slices.Collect(snapshot.Overrides())
		assert.True(t, len(faults) <= 0 && len(got) == 1 && got[0] == row, "%+v (%v), want %+v", got, faults, row)
	}
}

func TestANodeReportsTheFaultsOfAnOverrideAsItsDeclarationHasThem(t *testing.T) {
	for _, c := range policytest.FaultyOverrides(t, "../../../schema/testdata/faulty_overrides.json") {
		if c.IsAbsent() {
			continue // in a row of Go
		}
		rows := policy.Rows{Overrides: []policy.Override{{ID: 7, Override: c.Row}}}
		snapshot, faults := policy.NewSnapshot(rows, nil)
		if c.Override["ip"] == "10.0.0.0/8" { // nodes apply it
			assert.True(t, len(faults) <= 0 && snapshot.Len() == 1, "%v: %v", c.Override, faults)
			continue
		}
		isSame := func(f policy.Fault) bool { return f.Field == c.Field && f.Problem == c.Message }
		if !slices.ContainsFunc(faults, isSame) || snapshot.Len() != 0 {
			t.Errorf("%v: %v, want %s: %s", c.Override, faults, c.Field, c.Message)
		}
	}
}

func TestAnExplanationShowsEveryFieldOfAPolicy(t *testing.T) {
	policytest.WantShown(t, "Describe of bound.go", map[string]string{
		"soft_threshold_pct": "policy get shows when a limit warns",
		"hard_threshold_pct": "policy get shows how far above the limit requests are admitted",
		"soft_only":          "policy get shows that a limit never denies",
		"public_note":        "it is for the tenant",
	}, func(p schema.Policy) string {
		plan, id := policytest.Resolve(t, p)
		text, err := json.Marshal(plan.Explain(&id, 1000))
		require.NoError(t, err)
		return string(text)
	})
}

func TestOnlyBucketsAndFixedWindowsWithRoomForTheirCostAreLeasable(t *testing.T) {
	bucket := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: limit.Second}
	using := func(algorithm limit.Algorithm) limit.Spec {
		return limit.Spec{Algorithm: algorithm, Quantity: 1000, Window: limit.Second}
	}
	with := func(edit func(*limit.Spec)) limit.Spec {
		spec := bucket
		edit(&spec)
		return spec
	}
	doubled := with(func(s *limit.Spec) { s.SoftPct, s.HardPct = 80, 200 })
	for name, test := range map[string]struct {
		spec     limit.Spec
		accuracy policy.Accuracy
		cost     int64
		want     bool
	}{
		"a token bucket":                       {bucket, policy.Leased, -1, true},
		"a fixed window":                       {using(limit.FixedWindow), policy.Leased, -1, true},
		"a leaky bucket":                       {using(limit.LeakyBucket), policy.Leased, -1, false},
		"a sliding window":                     {using(limit.SlidingWindow), policy.Leased, -1, false},
		"a sliding log":                        {using(limit.SlidingLog), policy.Leased, -1, false},
		"an exact token bucket":                {bucket, policy.Exact, -1, false},
		"an exact fixed window":                {using(limit.FixedWindow), policy.Exact, -1, false},
		"a free one":                           {bucket, policy.Leased, 0, true},
		"a cost that a lease leaves room for":  {bucket, policy.Leased, 950, true},
		"a cost that a lease may not leave":    {bucket, policy.Leased, 951, false},
		"all of a window":                      {using(limit.FixedWindow), policy.Leased, 1000, false},
		"all of a small burst":                 {with(func(s *limit.Spec) { s.Burst = 10 }), policy.Leased, 10, false},
		"little of a large burst":              {with(func(s *limit.Spec) { s.Burst = 2000 }), policy.Leased, 1000, true},
		"all below a hard threshold of double": {doubled, policy.Leased, 1000, true},
	} {
		l, err := limit.New(test.spec)
		require.NoError(t, err, "%s", name)
		p := policy.Policy{Name: "p", Scope: policy.Tenant, Limit: l, Accuracy: test.accuracy, Cost: test.cost}
		assert.Equal(t, test.want, p.Leasable(), "%s: leasable", name)
	}
}
