package resolve_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		assert.Equal(t, []int64{want}, costs, "GET %s costs %v, want %d", endpoint, costs, want)
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
	assert.Equal(t, []int64{7}, costs, "under the candidate the request costs %v, want 7", costs)
}

// settling has limits with each kind of reservation, and one that does not settle.
const settling = `{trusted_headers: [X-Max-Tokens, X-Cost], cost_header: X-Cost, costs: {POST /chat: 7},
	tiers: [{name: a, limits: [
	{name: constant, scope: tenant, limit: 1000, window_size: 1, settle: {sources: [{from: log.n}], reserve: 500}},
	{name: header, scope: tenant, limit: 1000, window_size: 1,
	 settle: {sources: [{from: shared.n}], reserve_header: x-max-tokens, reserve_max: 400}},
	{name: cost, scope: tenant, limit: 1000, window_size: 1, settle: {sources: [{from: header.N}]}},
	{name: own, scope: tenant, limit: 1000, window_size: 1, cost: 3, settle: {sources: [{from: header.N}]}},
	{name: plain, scope: tenant, limit: 1000, window_size: 1}]}]}`

// costsOf returns what a request costs under each policy, and whether it settles.
func costsOf(plan *resolve.Plan, id identity.Identity) (costs map[string]int64, settles bool) {
	var r resolve.Resolution
	plan.ResolveAt(&id, 0, &r)
	costs = map[string]int64{}
	for _, b := range r.Bounds {
		costs[b.Policy.Name] = b.Cost
	}
	return costs, r.Settles
}

func TestABoundThatSettlesCostsItsReservation(t *testing.T) {
	plan := compile(t, settling)
	if headers := []string{"X-Cost", "X-Max-Tokens"}; !slices.Equal(plan.Rules.Headers, headers) ||
		plan.Rules.Required&identity.HeaderFacts == 0 {
		t.Errorf("headers %q, facts %b", plan.Rules.Headers, plan.Rules.Required)
	}
	chat := identity.Identity{Tenant: tenant("acme"), Method: "POST", Path: "/chat"}
	asking := func(tokens int64) identity.Identity {
		id := chat
		id.Reserves[0] = tokens
		return id
	}
	costing := chat
	costing.Cost = 9
	for _, test := range []struct {
		name                string
		id                  identity.Identity
		header, cost, plain int64
	}{
		{"of the cost table", chat, 7, 7, 7},
		{"of the cost header", costing, 9, 9, 9},
		{"with a reservation", asking(100), 100, 7, 7},
		{"with too large a reservation", asking(401), 400, 7, 7},
	} {
		costs, settles := costsOf(plan, test.id)
		if costs["constant"] != 500 || costs["header"] != test.header || costs["cost"] != test.cost || costs["own"] != 3 ||
			costs["plain"] != test.plain || !settles {
			t.Errorf("%s: costs %v, settles %v", test.name, costs, settles)
		}
	}
}

func TestAReservationIsReadFromItsHeader(t *testing.T) {
	plan := compile(t, settling)
	for text, want := range map[string]int64{
		"": 7, "0": 7, "-5": 7, "1.5": 7, "x": 7, "100": 100, "400": 400, "99999999999999999999999": 400,
	} {
		request := identity.Request{Known: ^identity.Facts(0), Method: "POST", Path: "/chat", Headers: []string{"", text}}
		request.Consumer.CustomID = "acme"
		var id identity.Identity
		missing := plan.Rules.Identify(&request, &id)
		require.True(t, missing == 0, "%q: facts %b are missing", text, missing)
		costs, _ := costsOf(plan, id)
		assert.True(t, costs["header"] == want, "%q reserves %d, want %d", text, costs["header"], want)
	}
}

func TestOnlyAConfigWithSettlingLimitsReadsReservations(t *testing.T) {
	plan := compile(t, `{trusted_headers: [X-Max-Tokens],
		tiers: [{name: a, limits: [{name: plain, scope: tenant, limit: 1000, window_size: 1}]}]}`)
	assert.True(t, len(plan.Rules.Headers) <= 0 && len(plan.Rules.ReserveHeaders) <= 0, "it reads %q", plan.Rules.Headers)
	_, settles := costsOf(plan, identity.Identity{Tenant: tenant("acme")})
	assert.True(t, !settles, "a limit without settle settles")
}

// settlingRow returns a row that takes reservations from a header.
func settlingRow(id int64, header string) policy.PolicyRow {
	return policy.PolicyRow{ID: id, Policy: schema.Policy{Tenant: "acme", Limit: schema.Limit{
		Name: "of-" + header, Scope: "tenant", Limit: 1000, WindowSize: 60,
		Settle: &schema.Settle{
			Sources: []schema.SettleSource{{From: "shared.n"}}, Reserve: 5, ReserveHeader: header, ReserveMax: 900,
		},
	}}}
}

func TestARowReadsItsReservationFromAHeaderThatTheConfigTrusts(t *testing.T) {
	plan := compile(t, settling)
	snapshot := build(t, policy.Rows{Policies: []policy.PolicyRow{settlingRow(1, "x-cost"), settlingRow(2, "X-Other")}})
	with := plan.With(snapshot)
	assert.Equal(t, []string{"X-Cost", "X-Max-Tokens"}, with.Rules.Headers, "it reads")
	id := identity.Identity{Tenant: tenant("acme"), Reserves: [identity.MaxReserveHeaders]int64{100, 200}}
	costs, _ := costsOf(with, id)
	assert.True(t, costs["of-x-cost"] == 200 && costs["of-X-Other"] == 5 && costs["header"] == 100, "costs %v", costs)
	faults := with.Faults()
	if len(faults) != 1 || faults[0].Key != "2" || faults[0].Field != "settle.reserve_header" ||
		!strings.Contains(faults[0].Problem, "trusted_headers") {
		t.Errorf("faults %+v", faults)
	}
	without := policy.Changes{Rows: policy.Rows{Version: 2}, Removed: policy.RowKeys{Policies: []int64{1, 2}}}
	snapshot = apply(t, snapshot, without)
	if faults := with.With(snapshot).Faults(); len(faults) > 0 {
		t.Errorf("without the rows there are faults %+v", faults)
	}
}

func TestReservationsAreReadFromAFewHeadersOfRows(t *testing.T) {
	plan := compile(t, `{trusted_headers: [A, B, C, D, E, F], tiers: []}`)
	var rows policy.Rows
	for i, header := range []string{"A", "B", "C", "D", "E"} {
		rows.Policies = append(rows.Policies, settlingRow(int64(i+1), header))
	}
	with := plan.With(build(t, rows))
	assert.Equal(t, []string{"A", "B", "C", "D"}, with.Rules.Headers, "it reads")
	faults := with.Faults()
	if len(faults) != 1 || faults[0].Key != "5" || !strings.Contains(faults[0].Problem, "at most 4") {
		t.Errorf("faults %+v", faults)
	}
}

func TestAPolicyThatSettlesIsNotLeasableAndDescribesIt(t *testing.T) {
	plan := compile(t, settling)
	for _, p := range plan.Policies() {
		assert.Equal(t, p.Name == "plain", p.Leasable(), "%s: leasable", p.Name)
		if p.Name == "constant" && !strings.Contains(p.Describe(), "reserves 500, settles to log.n") {
			t.Errorf("%s: %s", p.Name, p.Describe())
		}
	}
}

func TestAnOverrideOfALimitKeepsItsSettling(t *testing.T) {
	plan := compile(t, settling)
	for factor, want := range map[int64]int64{500: 500, 400: 400} { // never more than the limit then holds
		part := schema.Override{Kind: schema.KindMultiplier, Tenant: "acme", Factor: schema.Factor(factor)}
		snapshot := build(t, policy.Rows{Overrides: numbered(part)})
		var r resolve.Resolution
		id := identity.Identity{Tenant: tenant("acme")}
		plan.With(snapshot).ResolveAt(&id, 0, &r)
		if b := r.Bounds[0]; b.Policy.Settle == nil || b.Policy.Limit.Capacity() != factor || b.Cost != want {
			t.Errorf("%s costs %d, want %d", b.Policy.Describe(), b.Cost, want)
		}
	}
}

func TestRowsThatSettleAlikeShareOneRule(t *testing.T) {
	snapshot := build(t, policy.Rows{
		Policies: []policy.PolicyRow{settlingRow(1, "A"), settlingRow(2, "A"), settlingRow(3, "B")},
	})
	rules := map[*schema.Settle]int{}
	for row := range snapshot.Policies() {
		rules[row.Settle]++
	}
	assert.Len(t, rules, 2, "%d rules of 3 rows, want 2", len(rules))

	matching := []policy.PolicyRow{settlingRow(1, "A"), settlingRow(2, "A"), settlingRow(3, "A")}
	matching[0].Match, matching[1].Match = &schema.Match{Model: "a, provider b"}, &schema.Match{Model: "a", Provider: "b"}
	clear(rules)
	for row := range build(t, policy.Rows{Policies: matching}).Policies() {
		assert.Equal(t, matching[row.ID-1].Match, row.Match, "row %d", row.ID)
		rules[row.Settle]++
	}
	assert.Len(t, rules, 3, "rows that match other models have rules of their own")
}

func TestARowThatCannotSettleIsAFault(t *testing.T) {
	for field, edit := range map[string]func(*schema.Limit){
		"settle.sources[0].from": func(l *schema.Limit) { l.Settle.Sources[0].From = "body.n" },
		"settle.sources":         func(l *schema.Limit) { l.Settle.Sources = nil },
		"settle.reserve":         func(l *schema.Limit) { l.Settle.Reserve = 1001 },
		"settle.reserve_max":     func(l *schema.Limit) { l.Settle.ReserveMax = 0 },
		"settle.reserve_header":  func(l *schema.Limit) { l.Settle.ReserveHeader = "" },
		"algorithm":              func(l *schema.Limit) { l.Algorithm = schema.AlgorithmSlidingLog },
		"soft_only":              func(l *schema.Limit) { l.SoftOnly = true },
	} {
		row := settlingRow(1, "A")
		edit(&row.Limit)
		snapshot, faults := policy.NewSnapshot(policy.Rows{Policies: []policy.PolicyRow{row}}, nil)
		assert.True(t, len(faults) == 1 && faults[0].Field == field && snapshot.Len() == 0, "%s: %+v", field, faults)
	}
}
