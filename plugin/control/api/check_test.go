package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestACheckSpendsTheCostAndReturnsTheRemainingTokens(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	got := p.checks(admin, `{"org_id":"acme","user_id":"u_42","endpoint":"post /records/7","cost":5}`)
	if !got.Allowed || got.Reason != "within_limits" || got.Policy != "writes" || *got.Limit != 20 ||
		*got.Remaining != 15 ||
		got.Reset == nil || got.ResetEpoch < got.Reset.Unix() || got.ResetEpoch > got.Reset.Unix()+1 ||
		got.RetryAfter != 0 || got.Tier != "enterprise" || got.Endpoint != "POST /records/{id}" ||
		len(got.Statuses) != 4 {
		t.Errorf("%+v", got)
	}
	for _, status := range got.Statuses {
		if !status.Allowed || !status.Charged || status.Cost != 5 || *status.Used != 5 || status.Source != "redis" {
			t.Errorf("%+v: want it charged 5 in Redis", status)
		}
	}
	denied := p.checks(admin, `{"org_id":"acme","user_id":"u_42","endpoint":"POST /records/{id}","cost":16}`)
	if denied.Allowed || denied.Reason != "limit_exceeded" || denied.Policy != "writes" || *denied.Remaining != 15 ||
		denied.RetryAfter < 1 {
		t.Errorf("%+v: want it denied by writes, to be tried again", denied)
	}
	never := p.checks(admin, `{"org_id":"acme","endpoint":"POST /records/1","cost":21}`)
	if never.Allowed || never.RetryAfter != 0 || never.Reason != "cost_too_large" {
		t.Errorf("%+v: want it denied, and no wait that helps", never)
	}
	want := map[string]int64{
		"daily of the org": 5, "writes at POST /records/{id} of the org": 5, "per-user of user u_42": 5,
	}
	if used := p.has("acme", "?user=u_42"); !maps.Equal(used, want) {
		t.Errorf("used is %v, want %v", used, want)
	}
	if n := p.observed.decisions.Load(); n != 3 {
		t.Errorf("%d decisions were observed, want 3", n)
	}
}

func TestADryRunReturnsTheAnswerAndSpendsNothing(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	p.checks(admin, `{"org_id":"acme","endpoint":"POST /records/7","cost":15}`)
	before := p.has("acme", "")
	keys, err := p.redis.Client(t).Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for cost, allowed := range map[int]bool{1: true, 5: true, 6: false, 20: false, 21: false} {
		request := fmt.Sprintf(`{"org_id":"acme","endpoint":"POST /records/7","cost":%d`, cost)
		dry := p.checks(viewer, request+`,"dry_run":true}`)
		if dry.Allowed != allowed || !dry.DryRun || dry.Policy != "writes" || *dry.Remaining != 5 || len(dry.Statuses) != 3 {
			t.Errorf("cost %d: %+v, want allowed %v", cost, dry, allowed)
		}
		for _, status := range dry.Statuses {
			if status.Charged || status.Policy == "" {
				t.Errorf("cost %d: %+v, want it not charged", cost, status)
			}
		}
		if !allowed {
			wet := p.checks(admin, request+"}")
			if wet.Allowed || wet.Policy != dry.Policy || (wet.RetryAfter == 0) != (dry.RetryAfter == 0) ||
				wet.Reason != dry.Reason {
				t.Errorf("cost %d: the dry run returns %+v, the request %+v", cost, dry, wet)
			}
		}
	}
	if used := p.has("acme", ""); !maps.Equal(used, before) {
		t.Errorf("used is %v, want %v as before", used, before)
	}
	after, err := p.redis.Client(t).Keys(t.Context(), "*").Result()
	if err != nil || len(after) != len(keys) {
		t.Errorf("the keys of Redis are %v, want %v as before (%v)", after, keys, err)
	}
	if n := p.observed.decisions.Load(); n != 4 {
		t.Errorf("%d decisions were observed, want the 4 that were no dry run", n)
	}
}

func TestABatchIsDecidedOneByOneInItsOrder(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	a := p.want(p.as("POST", "/v1/ratelimit/check/batch",
		`{"checks":[{"org_id":"a","cost":6},{"org_id":"a","cost":6},{"org_id":"b","cost":6},{"org_id":"a","cost":4,"dry_run":true},{"org_id":"a","cost":4}]}`), http.StatusOK)
	var decisions []string
	for _, result := range read[struct{ Results []api.Checked }](p.world, a).Results {
		decisions = append(decisions, fmt.Sprint(result.Allowed, " ", *result.Remaining))
	}
	if got, want := strings.Join(decisions, ", "), "true 4, false 4, true 4, true 4, true 0"; got != want {
		t.Errorf("answered %s, want %s", got, want)
	}
	for _, checks := range []string{``, strings.Repeat(`{"org_id":"a"},`, 101)} {
		body := `{"checks":[` + strings.TrimSuffix(checks, ",") + `]}`
		if a := p.want(p.as("POST", "/v1/ratelimit/check/batch", body),
			http.StatusUnprocessableEntity); read[problem](p.world, a).paths() != "body.checks" {
			t.Errorf("%.40s: %s", body, a.Body)
		}
	}
}

func TestRolesLimitTheOrgsOfChecks(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), enterprise())
	for _, test := range []struct {
		token, body string
		status      int
	}{
		{viewer, `{"org_id":"acme"}`, http.StatusForbidden},
		{viewer, `{"org_id":"acme","dry_run":true}`, http.StatusOK},
		{ofAcme, `{"org_id":"acme"}`, http.StatusOK},
		{ofAcme, `{"org_id":"acme","tier":"enterprise","dry_run":true}`, http.StatusOK},
		{ofAcme, `{"org_id":"acme","tier":"essentials"}`, http.StatusForbidden},
		{ofAcme, `{"org_id":"acme","tier":"essentials","dry_run":true}`, http.StatusForbidden},
		{ofAcme, `{"org_id":"globex"}`, http.StatusForbidden},
		{ofAcme, `{"org_id":"globex","dry_run":true}`, http.StatusForbidden},
		{ofAcme, `{"org_id":"ACME"}`, http.StatusForbidden},
		{ofAcme, `{"org_id":"acme "}`, http.StatusForbidden},
		{ofAcme, `{}`, http.StatusForbidden},
		{admin, `{}`, http.StatusUnprocessableEntity},
	} {
		p.want(p.do(call{test.token, "POST", "/v1/ratelimit/check", test.body, nil}), test.status)
	}
	p.want(p.do(call{
		ofAcme, "POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"acme"},{"org_id":"globex"}]}`, nil,
	}), http.StatusForbidden)
	if used := p.has("acme", "")["daily of the org"]; used != 1 {
		t.Errorf("%d are used, want 1: a batch that is denied spends nothing", used)
	}
}

func TestAnOrgSpendsNoLimitOfAnAddress(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Tiers[1].Limits = append(config.Tiers[1].Limits, schema.Limit{
		Name: "per-address", Scope: "ip", Endpoint: "POST /login", Limit: 3, WindowSize: 60,
	})
	p := planning(t, config.WithDefaults(), enterprise())
	const path, login = "/v1/ratelimit/check", `"org_id":"acme","ip":"192.0.2.1","endpoint":"POST /login"`
	for range 4 { // more than the limit has
		a := p.want(p.do(call{ofAcme, "POST", path, `{` + login + `}`, nil}), http.StatusForbidden)
		if !strings.Contains(read[problem](p.world, a).Detail, "address") {
			t.Errorf("%s", a.Body)
		}
	}
	if got := p.checks(ofAcme, `{`+login+`,"dry_run":true}`); !got.Allowed {
		t.Errorf("a dry run: %+v", got)
	}
	p.checks(ofAcme, `{"org_id":"acme","ip":"192.0.2.1","endpoint":"POST /records/7"}`) // where no limit is an address's
	if got := p.checks(admin, `{`+login+`,"cost":3}`); !got.Allowed {
		t.Errorf("%+v: the address has lost what others could not spend", got)
	}
}

func TestOverridesDecideChecksAndAreNamed(t *testing.T) {
	t.Parallel()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(3,
			schema.Override{Kind: schema.KindBan, Tenant: "acme", User: "eve", ExpiresAt: timeOf(tomorrow)}),
		policytest.Override(4, schema.Override{Kind: schema.KindExempt, Tenant: "acme", User: "root"}),
		policytest.Override(5, schema.Override{Kind: schema.KindCustomLimit, Tenant: "acme", Policy: "daily", Limit: 2000}),
		policytest.Override(6, schema.Override{Kind: schema.KindMultiplier, Tenant: "globex", Factor: 2000}),
	}
	rows.Tenants = append(rows.Tenants, schema.Tenant{ID: "globex", Tier: "enterprise"})
	p := planning(t, plan(), rows)
	for _, dry := range []string{"", `,"dry_run":true`} {
		eve := p.checks(admin, `{"org_id":"acme","user_id":"eve"`+dry+`}`)
		if eve.Allowed || eve.Reason != "banned" || eve.RetryAfter != 86_400 || len(eve.Overrides) != 1 ||
			eve.Overrides[0] != 3 {
			t.Errorf("%+v: want eve banned by 3", eve)
		}
		root := p.checks(admin, `{"org_id":"acme","user_id":"root"`+dry+`}`)
		if !root.Allowed || root.Reason != "exempt" || root.Limit != nil || len(root.Overrides) != 1 ||
			root.Overrides[0] != 4 {
			t.Errorf("%+v: want root exempt by 4", root)
		}
		paid := p.checks(admin, `{"org_id":"acme"`+dry+`}`)
		if !paid.Allowed || len(paid.Overrides) != 1 || paid.Overrides[0] != 5 || paid.Statuses[0].Limit != 2000 {
			t.Errorf("%+v: want 2000 by 5", paid)
		}
		twice := p.checks(admin, `{"org_id":"globex","user_id":"u","endpoint":"POST /records/7"`+dry+`}`)
		if len(twice.Statuses) != 4 || len(twice.Overrides) != 1 || twice.Overrides[0] != 6 {
			t.Errorf("%+v: want 6 named once, which changes three of the four limits", twice)
		}
	}
}

func TestACheckOfAPathAloneMeetsPatternsOfAnyMethod(t *testing.T) {
	t.Parallel()
	config := plan()
	config.Tiers[0].Limits = append(config.Tiers[0].Limits,
		schema.Limit{Name: "jobs", Scope: "tenant", Endpoint: "* /jobs/{id}", Limit: 5, WindowSize: 86400},
		schema.Limit{Name: "gets", Scope: "tenant", Endpoint: "GET /jobs/{id}", Limit: 3, WindowSize: 86400})
	p := planning(t, config, policy.Rows{})
	got := p.checks(admin, `{"org_id":"acme","endpoint":"/jobs/7","cost":2}`)
	if !got.Allowed || got.Endpoint != "* /jobs/{id}" || got.Policy != "jobs" || *got.Remaining != 3 ||
		len(got.Statuses) != 3 {
		t.Errorf("%+v, want it counted by jobs", got)
	}
	other := p.checks(admin, `{"org_id":"acme","endpoint":"/other"}`)
	if !other.Allowed || other.Endpoint != "" || !strings.Contains(strings.Join(other.Notes, " "), "(* /other)") {
		t.Errorf("%+v, want a note that no pattern covers it", other)
	}
}

func TestAllFaultsOfChecksAreListedWithTheirPaths(t *testing.T) {
	t.Parallel()
	p := planning(t, plan(), policy.Rows{})
	for body, want := range map[string]string{
		`{"org_id":7,"cost":0,"ip":"here","endpoint":"POST records","surprise":1}`: "body.cost body.endpoint body.ip body.org_id body.surprise",
		`{"org_id":"` + strings.Repeat("x", 1025) + `","cost":1e12}`:               "body.cost body.org_id",
		`{"org_id":"a\u0000b","endpoint":"/rec ords"}`:                             "body.org_id",
		`{"org_id":"acme","endpoint":" /records"}`:                                 "body.endpoint",

		`{"org_id":"acme","user_id":"a\u0000","tier":"\u0000","credential_id":"\u0000","ip":"::g"}`: "body.credential_id body.tier body.user_id",
	} {
		p.wantFaults(p.as("POST", "/v1/ratelimit/check", body), want)
		p.wantFaults(p.as("POST", "/v1/ratelimit/check/batch", `{"checks":[{"org_id":"fine"},`+body+`]}`),
			strings.ReplaceAll(want, "body.", "body.checks[1]."))
	}
}
