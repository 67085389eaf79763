package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	checkPath = "/v1/ratelimit/check"
	batchPath = checkPath + "/batch"
)

// sharing is a config whose requests spend a global limit of 5000, and one of an endpoint, beside those of their own
// that are given.
func sharing(own ...schema.Limit) schema.Config {
	config := plan()
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: append(own, schema.Limit{
		Name: "at-endpoint", Scope: "endpoint", Endpoint: "POST /shared", Limit: 100, WindowSize: 86400,
	})}}
	return config.WithDefaults()
}

// with returns an edited limit.
func with(l schema.Limit, edit func(*schema.Limit)) schema.Limit {
	edit(&l)
	return l
}

func TestTheTokenOfAnOrgSpendsOneOfASharedLimitAndTheCostOfItsOwn(t *testing.T) {
	t.Parallel()
	daily := limitOf("daily", "", 1000)
	perUser := with(daily, func(l *schema.Limit) { l.Scope = "user" })
	exempt := policytest.Override(1, schema.Override{Kind: schema.KindExempt, Tenant: "acme"})
	for name, test := range map[string]struct {
		own    []schema.Limit
		rows   policy.Rows
		body   string
		spends int64 // of the 5000 that all orgs share
		daily  int64 // of its own
	}{
		"no limit of its own":       {nil, policy.Rows{}, `"cost":2`, 1, 0},
		"a cost of 1":               {nil, policy.Rows{}, `"cost":1`, 1, 0},
		"no cost":                   {nil, policy.Rows{}, `"endpoint":"POST /shared"`, 1, 0},
		"the cost of an endpoint":   {[]schema.Limit{daily}, policy.Rows{}, `"endpoint":"POST /costly"`, 1, 70},
		"a dry run":                 {nil, policy.Rows{}, `"cost":5000,"dry_run":true`, 0, 0},
		"a limit of its own":        {[]schema.Limit{daily}, policy.Rows{}, `"cost":900`, 1, 900},
		"one that does not have it": {[]schema.Limit{daily}, policy.Rows{}, `"cost":1001`, 0, 0},
		"one of a user":             {[]schema.Limit{perUser}, policy.Rows{}, `"cost":900,"user_id":"u"`, 1, 900},
		"a row of its own": {nil, policy.Rows{Policies: []policy.PolicyRow{{ID: 1, Policy: schema.Policy{
			Tenant: "acme", Limit: daily,
		}}}}, `"cost":200`, 1, 200},
		"an exemption": {nil, policy.Rows{Overrides: []policy.Override{exempt}}, `"cost":2`, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buckets := shelf{memory.New(memory.Options{Now: clock})}
			config := sharing(test.own...)
			config.Costs = map[string]int64{"POST /costly": 70}
			decider := deciderOf(t, config, buckets, test.rows)
			w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
			left := func(named string) (n int64) {
				a := w.want(w.as("POST", checkPath, `{"org_id":"acme","user_id":"u","cost":1,"dry_run":true}`), http.StatusOK)
				for _, s := range read[api.Checked](w, a).Statuses {
					if s.Policy == named {
						n = *s.Remaining
					}
				}
				return n
			}
			shared, own := left("all"), left("daily")
			a := w.want(w.do(call{ofAcme, "POST", checkPath, `{"org_id":"acme",` + test.body + `}`, nil}), http.StatusOK)
			if got := shared - left("all"); got != test.spends {
				t.Errorf("%s spends %d of what all share, want %d: %s", test.body, got, test.spends, a.Body)
			}
			if got := own - left("daily"); got != test.daily {
				t.Errorf("%s spends %d of its own limit, want %d: %s", test.body, got, test.daily, a.Body)
			}
		})
	}
}

func TestNoCostOfADryRunShowsHowMuchOfASharedLimitIsLeft(t *testing.T) {
	t.Parallel()
	daily := limitOf("daily", "", 1000)
	for name, own := range map[string][]schema.Limit{
		"no limit of its own": nil,
		"a limit of its own":  {daily},
		"a generous one":      {limitOf("daily", "", 1_000_000)},
		"one in shadow":       {with(daily, func(l *schema.Limit) { l.Mode = "shadow" })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := planning(t, sharing(own...), policy.Rows{})
			p.checks(admin, `{"org_id":"globex","cost":50,"endpoint":"POST /shared"}`)
			for _, cost := range []int64{1, 49, 50, 51, 100, 101, 4949, 4950, 4951, 5001, 1_000_000_000} {
				const check = `{"org_id":"acme","endpoint":"POST /shared","cost":%d,"dry_run":true}`
				got := p.checks(ofAcme, fmt.Sprintf(check, cost))
				shown := slices.Contains(got.Violated, "at-endpoint") || slices.Contains(got.Violated, "all")
				if shown || got.Allowed == (len(got.Violated) > 0) {
					t.Errorf("a cost of %d: %+v; want nothing of what all share", cost, got)
				}
			}
		})
	}
}

func TestASharedLimitThatDeniesIsNotShownWhereALimitOfTheOrgDenies(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`"cost":1001`, `"cost":1001,"dry_run":true`, `"cost":999`, `"cost":999,"dry_run":true`,
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			var seen []string
			for _, used := range []string{"1", "100"} {
				p := planning(t, sharing(limitOf("daily", "", 1000)), policy.Rows{})
				p.checks(ofAcme, `{"org_id":"acme","cost":10}`)
				p.checks(admin, `{"org_id":"globex","endpoint":"POST /shared","cost":`+used+`}`)
				one := p.checks(ofAcme, `{"org_id":"acme","endpoint":"POST /shared","dry_run":true}`)
				if one.Allowed != (used == "1") {
					t.Errorf("%+v: want it denied by at-endpoint if nothing is left of it", one)
				}
				check := `{"org_id":"acme","endpoint":"POST /shared",` + body + `}`
				got := p.checks(ofAcme, check)
				if got.Allowed || !slices.Equal(got.Violated, []string{"daily"}) {
					t.Errorf("%+v: want only daily to deny", got)
				}
				seen = append(seen, fmt.Sprint(got.Allowed, got.Reason, got.Policy, got.RetryAfter, got.Violated,
					got.Degraded, got.Notes))
				a := p.want(p.do(call{ofAcme, "POST", batchPath, `{"checks":[` + check + `]}`, nil}), http.StatusOK)
				if strings.Contains(a.Body.String(), "at-endpoint") {
					t.Errorf("a batch shows at-endpoint: %s", a.Body)
				}
			}
			if seen[0] != seen[1] {
				t.Errorf("the answers differ by what is left of a shared limit:\n%s\n%s", seen[0], seen[1])
			}
		})
	}
}

func TestADenialByASharedLimitSpendsNothingOfTheOrgs(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(limitOf("daily", "", 1000)), policy.Rows{})
	p.checks(admin, `{"org_id":"globex","endpoint":"POST /shared","cost":100}`)
	got := p.checks(ofAcme, `{"org_id":"acme","endpoint":"POST /shared","cost":400}`)
	named := slices.Equal(got.Violated, []string{"at-endpoint"})
	if got.Allowed || !named || got.RetryAfter == 0 || *got.Remaining != 1000 {
		t.Errorf("%+v: want it denied by at-endpoint, with a time, and nothing spent of daily", got)
	}
}

func TestABatchCountsEachCheckAsASingleOne(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(), policy.Rows{})
	p.want(p.do(call{ofAcme, "POST", batchPath, `{"checks":[{"org_id":"acme"},{"org_id":"acme","cost":4000},{"org_id":"acme","cost":4000,"dry_run":true}]}`, nil}), http.StatusOK)
	if left := *p.checks(admin, `{"org_id":"acme","dry_run":true}`).Remaining; left != 4998 {
		t.Errorf("%d are left, want 4998", left)
	}
}

// spentShare denies every request by its share of the limit of an endpoint.
type spentShare struct{}

// Cap implements admit.Shares.
func (spentShare) Cap(d *decision.Decision, at limit.Micros) int {
	for i := range d.Resolution.Bounds {
		if d.Resolution.Bounds[i].Policy.Fair != nil {
			d.Statuses[i] = decision.Status{Source: decision.FairShare, Wait: limit.Second / 2, Now: at}
		}
	}
	return 0
}

// Count implements admit.Shares.
func (spentShare) Count(*decision.Decision) {}

func TestADenialByAShareSaysSoWithoutANumberOfTheLimit(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Global = schema.Global{Limits: []schema.Limit{{
		Name: "platform", Scope: "global", Limit: 987_654_321, WindowSize: 60, Fair: &schema.Fair{Weights: map[string]int64{"gold": 77}},
	}}}
	decider := deciderOf(t, config.WithDefaults(), shelf{memory.New(memory.Options{Now: clock})}, policy.Rows{})
	decider.Shares = spentShare{}
	w := open(t, func(o *api.Options) { o.Decider = decider })
	operator := w.want(w.as("POST", checkPath, `{"org_id":"acme"}`), http.StatusOK)
	org := w.want(w.do(call{ofAcme, "POST", checkPath, `{"org_id":"acme"}`, nil}), http.StatusOK)
	for _, text := range []string{operator.Body.String(), org.Body.String()} {
		if !strings.Contains(text, "your share of a shared limit, platform, is used up") ||
			!strings.Contains(text, `"allowed":false`) || !strings.Contains(text, `"retry_after":1`) {
			t.Errorf("the answer is %s", text)
		}
	}
	if text := org.Body.String(); strings.Contains(text, "987654321") || strings.Contains(text, "weight") {
		t.Errorf("the token of an org reads numbers of a shared limit: %s", text)
	}
}

func TestAGenerousTokenOfAnOrgDoesNotUseUpWhatAllOrgsShare(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(limitOf("daily", "", 1_000_000)), policy.Rows{})
	for i := range 5 {
		left := 1_000_000 - int64(i+1)*4990 // and what has come back since: less than one check takes
		got := p.checks(ofAcme, `{"org_id":"acme","cost":4990}`)
		if !got.Allowed || *got.Remaining < left || *got.Remaining >= left+4990 {
			t.Errorf("%+v: want 4990 more spent of daily", got)
		}
	}
	if got := p.checks(admin, `{"org_id":"globex","cost":4995}`); !got.Allowed {
		t.Errorf("%+v: want 4995 of 5000 left for others", got)
	}
}
