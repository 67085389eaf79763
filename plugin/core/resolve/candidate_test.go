package resolve_test

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// perMinute returns a policy for a tier with a limit per minute.
func perMinute(name, tier, scope string, quantity int64) schema.Policy {
	return schema.Policy{Tier: tier, Limit: schema.Limit{Name: name, Scope: scope, Limit: quantity, WindowSize: 60}}
}

// activeRows are the rows beside which candidates are opened.
func activeRows() policy.Rows {
	rows := policy.Rows{Version: 7}
	for i, p := range []schema.Policy{
		perMinute("a", "free", "tenant", 10), perMinute("b", "free", "tenant", 20), perMinute("all", "free", "global", 1000),
	} {
		rows.Policies = append(rows.Policies, policy.PolicyRow{ID: int64(i + 1), Policy: p})
	}
	return rows
}

// opened returns the plan of a config with tier free, beside the active rows and a candidate.
func opened(t *testing.T, set *policy.CandidateSet) (*resolve.Plan, []policy.Fault) {
	t.Helper()
	config := schema.Config{Tiers: []schema.Tier{{Name: "free"}}}.WithDefaults()
	plan, err := resolve.FromConfig(config)
	require.NoError(t, err)
	snapshot, faults := policy.NewSnapshot(activeRows(), nil)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	both, faults := snapshot.WithCandidate(set)
	return plan.With(both), faults
}

// limitsOf returns the limits of a request of acme, with the ids of their rows.
func limitsOf(resolveAt func(*identity.Identity, *resolve.Resolution)) string {
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, Method: "GET", Path: "/x/7"}
	var r resolve.Resolution
	resolveAt(&id, &r)
	var list []string
	for _, b := range r.Bounds {
		list = append(list, fmt.Sprintf("%s=%d#%d", b.Policy.Name, b.Policy.Limit.Spec().Quantity, b.Policy.Row))
	}
	return strings.Join(list, " ")
}

func active(p *resolve.Plan) func(*identity.Identity, *resolve.Resolution) {
	return func(id *identity.Identity, r *resolve.Resolution) { p.ResolveAt(id, 0, r) }
}

func TestACandidateChangesItsOwnPlanAndNotTheActiveOne(t *testing.T) {
	narrow := perMinute("c", "free", "tenant", 3)
	narrow.Endpoint = "GET /x/{id}"
	plan, faults := opened(t, &policy.CandidateSet{Name: "spring", Rows: []policy.CandidateRow{
		{Policy: perMinute("a", "free", "tenant", 5)},
		{Policy: schema.Policy{Tier: "free", Limit: schema.Limit{Name: "b"}}, Deleted: true},
		{Policy: narrow},
		{Policy: schema.Policy{Tier: "free", Limit: schema.Limit{Name: "gone already"}}, Deleted: true},
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	before, _ := opened(t, nil)
	if got, want := limitsOf(active(plan)), limitsOf(active(before)); got != want || want != "a=10#1 all=1000#3 b=20#2" {
		t.Errorf("the active limits are %s, without a candidate %s", got, want)
	}
	c := plan.Candidate()
	assert.Equal(t, "a=5#1 all=1000#3 c=3#-3", limitsOf(active(c.Plan)), "the candidate's limits")
	if c.Name() != "spring" || c.Namespace != "default+spring" || resolve.ActiveNamespace(c.Namespace) != "default" ||
		c.Plan.Version() != plan.Version() || plan.Version() != 7 {
		t.Errorf("candidate %s counts in namespace %s at version %d", c.Name(), c.Namespace, c.Plan.Version())
	}
	if c.SameFacts || before.Candidate() != nil {
		t.Errorf("the candidate needs the path of a request, the active plan does not; without one there is %v",
			before.Candidate())
	}
}

func TestACandidateOfNumbersAloneNeedsNoOtherFacts(t *testing.T) {
	plan, _ := opened(t, &policy.CandidateSet{
		Name: "spring", Rows: []policy.CandidateRow{{Policy: perMinute("a", "free", "tenant", 5)}},
	})
	if c := plan.Candidate(); !c.SameFacts || !reflect.DeepEqual(c.Plan.Rules, plan.Rules) {
		t.Errorf("the candidate reads %+v, the active plan %+v", c.Plan.Rules, plan.Rules)
	}
}

func TestAConfigOfANamespaceWithoutChangesHasNoCandidate(t *testing.T) {
	other := perMinute("a", "free", "tenant", 5)
	other.Namespace = "partners"
	plan, _ := opened(t, &policy.CandidateSet{Name: "spring", Rows: []policy.CandidateRow{{Policy: other}}})
	if c := plan.Candidate(); c != nil {
		t.Errorf("the plan of namespace default has candidate %s", c.Name())
	}
}

func TestAChangeThatDoesNotCompileLeavesTheActiveRow(t *testing.T) {
	wrong := perMinute("a", "free", "tenant", 5)
	wrong.Algorithm = "hourglass"
	plan, faults := opened(t, &policy.CandidateSet{Name: "spring", Rows: []policy.CandidateRow{
		{Policy: wrong}, {Policy: perMinute("b", "free", "tenant", 1)},
	}})
	if len(faults) != 1 || faults[0].Table != "candidate_policies" || faults[0].Key != "default: a of tier free" ||
		faults[0].Field != "algorithm" {
		t.Errorf("faults are %v", faults)
	}
	assert.Equal(t, "a=10#1 all=1000#3 b=1#2", limitsOf(active(plan.Candidate().Plan)), "the candidate's limits")
}

func TestAnAssignedTenantKeepsTheActiveLimitsOfSharedBuckets(t *testing.T) {
	plan, _ := opened(t, &policy.CandidateSet{Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{
		{Policy: perMinute("a", "free", "tenant", 5)},
		{Policy: perMinute("all", "free", "global", 1)},
		{Policy: perMinute("per-ip", "free", "ip", 1)},
	}})
	c := plan.Candidate()
	enforced := limitsOf(func(id *identity.Identity, r *resolve.Resolution) { c.ResolveAt(id, 0, r) })
	assert.Equal(t, "a=5#1 b=20#2 all=1000#3", enforced, "acme is held to")
	assert.Equal(t, "a=5#1 all=1#3 b=20#2", limitsOf(active(c.Plan)), "the candidate is tried with")
}

// A row sets a tier for acme that only the candidate has.
func TestWhatAnAssignedTenantKeepsIsInThePoolOfItsTier(t *testing.T) {
	plan, err := resolve.FromConfig(schema.Config{
		Strategy: schema.StrategyRedis, Redis: schema.Redis{Host: "a"},
		RedisPools: []schema.RedisPool{{Name: "big", Redis: schema.Redis{Host: "b"}}},
		Tiers:      []schema.Tier{{Name: "free", RedisPool: "big"}},
	}.WithDefaults())
	require.NoError(t, err)
	rows := activeRows()
	rows.Tenants = []schema.Tenant{{ID: "acme", Tier: "new"}}
	snapshot, _ := policy.NewSnapshot(rows, nil)
	both, _ := snapshot.WithCandidate(&policy.CandidateSet{
		Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{
			{Policy: perMinute("a", "new", "tenant", 5)}, {Policy: perMinute("all", "free", "global", 1)},
		},
	})
	plan = plan.With(both)
	id, r := identity.Identity{Tenant: tenant("acme")}, resolve.Resolution{}
	for of, pools := range map[*resolve.Plan]string{plan: "a=1 b=1 all=1", plan.ForTenant("acme"): "a=0 all=0"} {
		of.ResolveAt(&id, 0, &r)
		var got []string
		for _, b := range r.Bounds {
			got = append(got, fmt.Sprintf("%s=%d", b.Policy.Name, b.Pool))
		}
		assert.ElementsMatch(t, strings.Fields(pools), got)
	}
	assert.Equal(t, "big", plan.Explain(&id, 0).Pool)
}

func TestALimitThatAnAssignedTenantIsNotHeldToDeniesNoModel(t *testing.T) {
	budget := perMinute("budget", "free", "global", 100)
	budget.Unit, budget.Algorithm = schema.UnitUSD, schema.AlgorithmFixedWindow
	budget.Settle = &schema.Settle{Sources: []schema.SettleSource{{From: schema.SourcePrices}}, Reserve: 1}
	plan, faults := opened(t, &policy.CandidateSet{
		Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{
			{Policy: perMinute("all", "free", "global", 1)}, {Policy: budget},
		},
	})
	require.Empty(t, faults)
	c, id, r := plan.Candidate(), identity.Identity{Tenant: tenant("acme"), Model: "gpt-5"}, resolve.Resolution{}
	c.Plan.ResolveAt(&id, 0, &r)
	assert.True(t, r.Unpriced, "as the candidate is tried")
	c.ResolveAt(&id, 0, &r)
	assert.False(t, r.Unpriced, "as it is enforced")
}

// A policy that only one of the sets shares is neither lost nor there twice.
func TestAnAssignedTenantKeepsAPolicyThatChangesWhetherItIsShared(t *testing.T) {
	plan, _ := opened(t, &policy.CandidateSet{Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{
		{Policy: perMinute("a", "free", "endpoint", 5)},
		{Policy: perMinute("all", "free", "tenant", 100)},
	}})
	c := plan.Candidate()
	enforced := limitsOf(func(id *identity.Identity, r *resolve.Resolution) { c.ResolveAt(id, 0, r) })
	assert.Equal(t, "b=20#2 a=10#1 all=1000#3", enforced, "acme is held to")
}

func TestTheNextSnapshotHasNoCandidateUntilItIsPutBesideIt(t *testing.T) {
	snapshot, _ := policy.NewSnapshot(activeRows(), nil)
	set := &policy.CandidateSet{Name: "spring", Rows: []policy.CandidateRow{{Policy: perMinute("a", "free", "tenant", 5)}}}
	both, _ := snapshot.WithCandidate(set)
	next, _ := both.Apply(policy.Changes{Rows: policy.Rows{Version: 8}})
	if both.CandidateSet() != set || snapshot.CandidateSet() != nil || next.CandidateSet() != nil {
		t.Errorf("candidates are %v, %v and %v", both.CandidateSet(), snapshot.CandidateSet(), next.CandidateSet())
	}
	again, _ := next.WithCandidate(set)
	without, _ := again.WithCandidate(nil)
	if again.CandidateSet() != set || again.Version() != 8 || without.CandidateSet() != nil {
		t.Errorf("candidates are %v at version %d, then %v", again.CandidateSet(), again.Version(), without.CandidateSet())
	}
}

func TestACandidateIsAssignedByNameAndByAStableShareOfTheTenants(t *testing.T) {
	tenant := func(i int) string { return fmt.Sprintf("tenant-%d", i) }
	const tenants = 20_000
	last := map[string]bool{}
	for _, percent := range []int64{0, 1, 5, 50, 100} {
		now := map[string]bool{}
		for i := range tenants {
			if policy.InCandidate("spring", tenant(i), percent) {
				now[tenant(i)] = true
			}
		}
		if want := tenants * int(percent) / 100; len(now) < want-want/8-5 || len(now) > want+want/8+5 {
			t.Errorf("%d %% are %d of %d tenants", percent, len(now), tenants)
		}
		for name := range last {
			require.True(t, now[name], "%s is not among %d %% any more", name, percent)
		}
		last = now
	}
	plan, _ := opened(t, &policy.CandidateSet{
		Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{{Policy: perMinute("a", "free", "tenant", 5)}},
	})
	for name, want := range map[identity.Name]bool{
		{Kind: identity.Tenant, ID: "acme"}: true, {Kind: identity.Tenant, ID: "zen"}: false,
		{Kind: identity.IP, ID: "acme"}: false,
	} {
		assert.Equal(t, want, plan.Candidate().Assigned(name), "the candidate is assigned to %+v", name)
	}
}

func TestTheShareOfACandidateIsTheSameInEveryProcess(t *testing.T) {
	for tenant, want := range map[string]int64{"acme": 86, "zen": 63, "org-1": 43} {
		from := int64(0)
		for !policy.InCandidate("spring", tenant, from) {
			from++
		}
		if from != want {
			t.Errorf("%s is assigned from %d %%, want %d %%: nodes of two versions would differ", tenant, from, want)
		}
	}
}

func TestThePlanOfAnAssignedTenantKeepsSharedLimitsAndExplainsThem(t *testing.T) {
	plan, _ := opened(t, &policy.CandidateSet{Name: "spring", Tenants: []string{"acme"}, Rows: []policy.CandidateRow{
		{Policy: perMinute("a", "free", "tenant", 5)},
		{Policy: perMinute("all", "free", "global", 1)},
	}})
	of := plan.ForTenant("acme")
	assert.Equal(t, "a=5#1 b=20#2 all=1000#3", limitsOf(active(of)), "the plan of acme resolves")
	id := identity.Identity{Tenant: identity.Name{Kind: identity.Tenant, ID: "acme"}, IP: "192.0.2.1"}
	for _, p := range of.ExplainPolicies(&id, 0) {
		if p.Source == "row" && p.Won != (p.Name != "all") {
			t.Errorf("%s is explained as won: %v, because %s", p.Name, p.Won, p.Why)
		}
	}
	assert.True(t, plan.ForTenant("beta") == plan, "a tenant that is not assigned has another plan")
	for tenant, assigned := range map[string]bool{"acme": true, "beta": false} {
		id.Tenant.ID = tenant
		e := plan.Explain(&id, 0)
		limits := map[string]string{}
		for _, b := range e.Candidate.Bounds {
			limits[b.Policy], _, _ = strings.Cut(b.Limit, " ")
		}
		want := map[string]string{"a": "5", "b": "20", "all": "1000"}
		if !assigned {
			want["all"] = "1"
		}
		if e.Candidate.Name != "spring" || e.Candidate.Assigned != assigned || !maps.Equal(limits, want) {
			t.Errorf("%s: the candidate is explained as %+v, want limits %v", tenant, e.Candidate, want)
		}
		if len(e.Bounds) != 3 || !strings.HasPrefix(e.Bounds[0].Limit, "10 ") {
			t.Errorf("%s: the active limits are %+v", tenant, e.Bounds)
		}
	}
}
