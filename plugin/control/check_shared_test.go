package control_test

import (
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

func TestAnOrgSpendsMoreThanOneOfASharedLimitOnlyWhereALimitOfItsOwnCountsIt(t *testing.T) {
	t.Parallel()
	buckets := shelf{memstore.New(memstore.Options{Now: clock})}
	path := pathOf(t, sharing(), buckets, policy.Rows{})
	w := open(t, func(o *control.Options) { o.Path, o.Buckets = path, buckets })
	daily := limitOf("daily", "", 1000)
	free := int64(0)
	for name, test := range map[string]struct {
		own    []schema.Limit
		rows   policy.Rows
		body   string
		status int
	}{
		"no limit of its own":       {nil, policy.Rows{}, `"cost":2`, http.StatusForbidden},
		"a cost of 1":               {nil, policy.Rows{}, `"cost":1`, http.StatusOK},
		"no cost":                   {nil, policy.Rows{}, `"endpoint":"POST /shared"`, http.StatusOK},
		"a dry run":                 {nil, policy.Rows{}, `"cost":5000,"dry_run":true`, http.StatusOK},
		"a limit of its own":        {[]schema.Limit{daily}, policy.Rows{}, `"cost":900`, http.StatusOK},
		"one that does not have it": {[]schema.Limit{daily}, policy.Rows{}, `"cost":1001`, http.StatusOK}, // and refuses it
		"one for other requests":    {[]schema.Limit{limitOf("reads", "GET /a", 1000)}, policy.Rows{}, `"cost":2,"endpoint":"POST /shared"`, http.StatusForbidden},
		"one in shadow":             {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Mode = "shadow" })}, policy.Rows{}, `"cost":2`, http.StatusForbidden},
		"one that only warns":       {[]schema.Limit{with(daily, func(l *schema.Limit) { l.SoftOnly, l.SoftThresholdPct = true, 80 })}, policy.Rows{}, `"cost":2`, http.StatusForbidden},
		"one that counts less":      {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Cost = &free })}, policy.Rows{}, `"cost":2`, http.StatusForbidden},
		"one of a user":             {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Scope = "user" })}, policy.Rows{}, `"cost":2,"user_id":"u"`, http.StatusOK},
		"one of a user, of nobody":  {[]schema.Limit{with(daily, func(l *schema.Limit) { l.Scope = "user" })}, policy.Rows{}, `"cost":2`, http.StatusForbidden},
		"a row of its own":          {nil, policy.Rows{Policies: []policy.Row{{ID: 1, Tenant: "acme", Limit: daily}}}, `"cost":2`, http.StatusOK},
		"an exemption":              {nil, policy.Rows{Overrides: []policy.Override{{ID: 1, Kind: policy.Exempt, Tenant: "acme", Reason: "r", Author: "a"}}}, `"cost":2`, http.StatusOK}, // nothing is spent
	} {
		ruled(t, path, admit.ForKnown(sharing(test.own...)), test.rows)
		body := `{"org_id":"acme",` + test.body + `}`
		a := w.do(call{ofAcme, "POST", checkPath, body, nil})
		if a.Code != test.status {
			t.Errorf("%s: %s is answered by %d %s, want %d", name, body, a.Code, a.Body, test.status)
		}
		if detail := read[problem](w, a).Detail; a.Code == http.StatusForbidden && (!strings.Contains(detail, "cost") || !strings.Contains(detail, "dry_run")) {
			t.Errorf("%s: it says %q, want what is wrong, and what to do", name, detail)
		}
		w.want(w.as("POST", checkPath, body), http.StatusOK)
	}
}

func TestABatchInWhichAnOrgSpendsTooMuchOfASharedLimitSpendsNothing(t *testing.T) {
	t.Parallel()
	p := planning(t, sharing(), policy.Rows{})
	batch := func(token, checks string, status int) answer {
		return p.want(p.do(call{token, "POST", batchPath, `{"checks":[` + checks + `]}`, nil}), status)
	}
	batch(ofAcme, `{"org_id":"acme"},{"org_id":"acme","cost":4000}`, http.StatusForbidden)
	all := read[struct{ Results []control.Checked }](p.world, batch(admin, `{"org_id":"acme","dry_run":true}`, http.StatusOK))
	if left := *all.Results[0].Remaining; left != 5000 {
		t.Errorf("%d are left, want all 5000", left)
	}
	batch(ofAcme, `{"org_id":"acme"},{"org_id":"acme","cost":4000,"dry_run":true}`, http.StatusOK)
}
