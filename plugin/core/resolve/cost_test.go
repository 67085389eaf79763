package resolve_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// costing returns a plan of a config with costs and a limit that has none, beside the costs of rows.
func costing(t *testing.T, rows ...policy.CostRow) *resolve.Plan {
	t.Helper()
	plan := compile(t, `{costs: {"GET /reports/{id}": 3, "GET /files/*": 4},
		tiers: [{name: a, limits: [{name: daily, limit: 1000, window_size: 86400, scope: tenant}]}]}`)
	return plan.With(build(t, policy.Rows{Version: 1, Costs: rows}))
}

func costRow(id int64, namespace, endpoint string, cost int64) policy.CostRow {
	return policy.CostRow{ID: id, Cost: schema.Cost{Namespace: namespace, Endpoint: endpoint, Cost: &cost}}
}

func TestARowsCostGoesBeforeTheConfigsAndTheRequestsOwnBeforeBoth(t *testing.T) {
	plan := costing(t,
		costRow(1, "", "GET /reports/*", 7), costRow(2, "", "GET /reports/summary", 8),
		costRow(3, "", "POST /free", 0), costRow(4, "other", "GET /files/*", 9))
	for path, want := range map[string]resolve.RequestCost{
		"GET /reports/5":       {Tokens: 7, From: resolve.RowCost, Row: 1, Endpoint: "GET /reports/*"},
		"GET /reports/summary": {Tokens: 8, From: resolve.RowCost, Row: 2, Endpoint: "GET /reports/summary"},
		"POST /free":           {Tokens: 0, From: resolve.RowCost, Row: 3, Endpoint: "POST /free"},
		"GET /files/a":         {Tokens: 4, From: resolve.ConfigCost, Endpoint: "GET /files/*"},
		"GET /elsewhere":       {Tokens: 1, From: resolve.DefaultCost},
	} {
		id := identity.Identity{Tenant: tenant("acme")}
		id.Method, id.Path, _ = strings.Cut(path, " ")
		var r resolve.Resolution
		if plan.ResolveAt(&id, 0, &r); r.Cost != want || len(r.Bounds) != 1 || r.Bounds[0].Cost != want.Tokens {
			t.Errorf("%s costs %+v, and %d of the limit, want %+v", path, r.Cost, r.Bounds[0].Cost, want)
		}
		if e := plan.Explain(&id, 0).Cost; e.Tokens != want.Tokens || e.ID != want.Row || e.From != want.From.String() {
			t.Errorf("%s is explained to cost %+v, want %+v", path, e, want)
		}
		id.Cost = 6
		if plan.ResolveAt(&id, 0, &r); r.Cost != (resolve.RequestCost{Tokens: 6, From: resolve.RequestsOwn}) {
			t.Errorf("%s that states a cost of 6 costs %+v", path, r.Cost)
		}
	}
}

func TestACostChangesWithItsRow(t *testing.T) {
	before, _ := policy.NewSnapshot(policy.Rows{Version: 1, Costs: []policy.CostRow{
		costRow(1, "default", "GET /a", 2), costRow(2, "default", "GET /b", 3), costRow(3, "default", "GET /c", 4),
	}}, nil)
	after, faults := before.Apply(policy.Changes{
		Rows: policy.Rows{Version: 2, Costs: []policy.CostRow{
			costRow(1, "default", "GET /b", 5), costRow(4, "x", "GET /d", 6),
		}},
		Removed: policy.RowKeys{Costs: []int64{2, 77}},
	})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	text := func(s *policy.Snapshot) (list []string) {
		for _, c := range s.Costs() {
			list = append(list, c.Namespace+" "+c.Endpoint+"="+string(rune('0'+*c.Cost.Cost)))
		}
		return list
	}
	if got := text(after); !slices.Equal(got, []string{"default GET /b=5", "default GET /c=4", "x GET /d=6"}) {
		t.Errorf("after the changes the costs are %q", got)
	}
	if got := text(before); !slices.Equal(got, []string{"default GET /a=2", "default GET /b=3", "default GET /c=4"}) {
		t.Errorf("the snapshot before has changed to %q", got)
	}
	if after.Len() != 3 {
		t.Errorf("it has %d rows, want 3", after.Len())
	}
	plan := compile(t, `{tiers: [{name: a, limits: [{name: daily, limit: 9, window_size: 60, scope: tenant}]}]}`)
	for endpoint, want := range map[string]int64{"/a": 1, "/b": 5, "/c": 4, "/d": 1} {
		_, costs := bounds(plan.With(after), identity.Identity{Tenant: tenant("acme"), Method: "GET", Path: endpoint})
		if !slices.Equal(costs, []int64{want}) {
			t.Errorf("GET %s costs %v, want %d", endpoint, costs, want)
		}
	}
}

func TestAFaultyCostKeepsItsLastGoodValue(t *testing.T) {
	before, _ := policy.NewSnapshot(policy.Rows{Costs: []policy.CostRow{costRow(1, "default", "GET /a", 2)}}, nil)
	crossing := costRow(3, "default", "* /a/x", 1)
	for name, test := range map[string]struct {
		rows  []policy.CostRow
		field string
	}{
		"no cost":              {[]policy.CostRow{{ID: 1, Cost: schema.Cost{Endpoint: "GET /a"}}}, "cost"},
		"too much":             {[]policy.CostRow{costRow(1, "", "GET /a", 1_000_000_001)}, "cost"},
		"no endpoint":          {[]policy.CostRow{costRow(1, "", "", 1)}, "endpoint"},
		"no pattern":           {[]policy.CostRow{costRow(1, "", "GET /{", 1)}, "endpoint"},
		"a pattern it crosses": {[]policy.CostRow{crossing, costRow(1, "", "GET /a/*", 1)}, "endpoint"},
	} {
		after, faults := before.Apply(policy.Changes{Rows: policy.Rows{Version: 2, Costs: test.rows}})
		if len(faults) != 1 || faults[0].Table != "costs" || faults[0].Key != "1" || faults[0].Field != test.field {
			t.Errorf("%s: the faults are %+v, want one of %s", name, faults, test.field)
		}
		if kept := after.Costs()[0]; kept.Endpoint != "GET /a" || *kept.Cost.Cost != 2 {
			t.Errorf("%s: the cost is %+v, want the last good one", name, kept)
		}
	}
}

func TestACandidateLeavesCostsAsTheyAre(t *testing.T) {
	set := &policy.CandidateSet{
		Name: "july", Percent: 100, Rows: []policy.CandidateRow{{Policy: perMinute("daily", "a", "tenant", 5)}},
	}
	rows := policy.Rows{Costs: []policy.CostRow{costRow(1, "default", "GET /a", 7)}}
	snapshot, faults := build(t, rows).WithCandidate(set)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	plan := compile(t, `{tiers: [{name: a, limits: [{name: daily, limit: 9, window_size: 60, scope: tenant}]}]}`)
	_, costs := bounds(plan.With(snapshot).Candidate().Plan,
		identity.Identity{Tenant: tenant("acme"), Method: "GET", Path: "/a"})
	if !slices.Equal(costs, []int64{7}) {
		t.Errorf("under the candidate the request costs %v, want 7", costs)
	}
}
