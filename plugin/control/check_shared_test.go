package control_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/memstore"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	checkPath = "/v1/ratelimit/check"
	batchPath = checkPath + "/batch"
)

// sharing is a config whose requests spend a global limit of 5000, and one of an endpoint, beside those of their own that
// are given.
func sharing(own ...schema.Limit) schema.Config {
	config := plan()
	config.Tiers = []schema.Tier{{Name: "essentials", Limits: append(own, schema.Limit{
		Name: "at-endpoint", Scope: "endpoint", Endpoint: "POST /shared", Limit: 100, WindowSize: 86400,
	})}}
	return config.WithDefaults()
}

// with is a limit with an edit.
func with(l schema.Limit, edit func(*schema.Limit)) schema.Limit {
	edit(&l)
	return l
}

func TestACostCountsForASharedLimitOnlyWhereALimitOfTheOrgAsAWholeCountsItToo(t *testing.T) {
	t.Parallel()
	daily := limitOf("daily", "", 1000)
	perUser := with(daily, func(l *schema.Limit) { l.Scope = "user" })
	free := int64(0)
	for name, test := range map[string]struct {
		own    []schema.Limit
		rows   policy.Rows
		body   string
		spends int64 // of the 5000 that all orgs share
	}{
		"no limit of its own":       {nil, policy.Rows{}, `"cost":2`, 1},
		"a cost of 1":               {nil, policy.Rows{}, `"cost":1`, 1},
		"no cost":                   {nil, policy.Rows{}, `"endpoint":"POST /shared"`, 1},
		"a dry run":                 {nil, policy.Rows{}, `"cost":5000,"dry_run":true`, 0},
		"a limit of its own":        {[]schema.Limit{daily}, policy.Rows{}, `"cost":900`, 900},
		"one that does not have it": {[]schema.Limit{daily}, policy.Rows{}, `"cost":1001`, 0}, // and refuses it
		"one for other requests":    {[]schema.Limit{limitOf("reads", "GET /a", 1000)}, policy.Rows{}, `"cost":2,"endpoint":"POST /shared"`, 1},
		"one in shadow":             {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Mode = "shadow" })}, policy.Rows{}, `"cost":2`, 1},
		"one that only warns":       {[]schema.Limit{with(daily, func(l *schema.Limit) { l.SoftOnly, l.SoftThresholdPct = true, 80 })}, policy.Rows{}, `"cost":2`, 1},
		"one that counts less":      {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Cost = &free })}, policy.Rows{}, `"cost":2`, 1},
		"one of a user":             {[]schema.Limit{perUser}, policy.Rows{}, `"cost":900,"user_id":"u"`, 1},
		"one of a user, of nobody":  {[]schema.Limit{perUser}, policy.Rows{}, `"cost":2`, 1},
		"one of a credential":       {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Scope = "credential" })}, policy.Rows{}, `"cost":900,"credential_id":"c"`, 1},
		"one of an endpoint":        {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Scope = "tenant+endpoint" })}, policy.Rows{}, `"cost":900`, 1},
		"one beside a user's":       {[]schema.Limit{with(perUser, func(l *schema.Limit) { l.Name = "user" }), daily}, policy.Rows{}, `"cost":900,"user_id":"u"`, 900},
		"a row of its own":          {nil, policy.Rows{Policies: []policy.Row{{ID: 1, Tenant: "acme", Limit: daily}}}, `"cost":2`, 2},
		"an exemption":              {nil, policy.Rows{Overrides: []policy.Override{{ID: 1, Kind: policy.Exempt, Tenant: "acme", Reason: "r", Author: "a"}}}, `"cost":2`, 0}, // nothing is spent
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			buckets := shelf{memstore.New(memstore.Options{Now: clock})}
			path := pathOf(t, admit.ForKnown(sharing(test.own...)), buckets, test.rows)
			w := open(t, func(o *control.Options) { o.Path, o.Buckets = path, buckets })
			left := func() int64 {
				a := w.want(w.as("POST", checkPath, `{"org_id":"someone","dry_run":true}`), http.StatusOK)
				for _, s := range read[control.Checked](w, a).Statuses {
					if s.Policy == "all" {
						return *s.Remaining
					}
				}
				t.Fatalf("the limit that all share is not in %s", a.Body)
				return 0
			}
			before := left()
			a := w.want(w.do(call{ofAcme, "POST", checkPath, `{"org_id":"acme",` + test.body + `}`, nil}), http.StatusOK)
			if got := before - left(); got != test.spends {
				t.Errorf("%s spends %d of what all share, want %d: %s", test.body, got, test.spends, a.Body)
			}
		})
	}
}

func TestFiveUsersOfAnOrgDoNotUseUpWhatAllOrgsShare(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(schema.Limit{Name: "per-user", Scope: "user", Limit: 1000, WindowSize: 86400}), policy.Rows{})
	for i := range 5 {
		got := p.checks(ofAcme, fmt.Sprintf(`{"org_id":"acme","user_id":"u%d","cost":970}`, i))
		if !got.Allowed || got.Policy != "per-user" || *got.Remaining != 30 || !strings.Contains(strings.Join(got.Notes, "\n"), "count this request as 1") {
			t.Errorf("%+v: want 970 spent of the user's 1000, and a note on what is shared", got)
		}
	}
	if got := p.checks(admin, `{"org_id":"globex","cost":4995}`); !got.Allowed {
		t.Errorf("%+v: want 4995 of 5000 left for others", got)
	}
}

func TestABatchCountsEachOfItsChecksAsItWouldAlone(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(), policy.Rows{})
	p.want(p.do(call{ofAcme, "POST", batchPath, `{"checks":[{"org_id":"acme"},{"org_id":"acme","cost":4000},{"org_id":"acme","cost":4000,"dry_run":true}]}`, nil}), http.StatusOK)
	if left := *p.checks(admin, `{"org_id":"acme","dry_run":true}`).Remaining; left != 4998 {
		t.Errorf("%d are left, want 4998", left)
	}
}
