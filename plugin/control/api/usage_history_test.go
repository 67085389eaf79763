package api_test

import (
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const acmeHistory = acmePath + "/ratelimit/usage/history"

// withHistory returns a world in which acme has used two endpoints in the last minute, and one policy.
func withHistory(t *testing.T, edit ...func(*api.Options)) *world {
	t.Helper()
	w := open(t, edit...)
	_, err := w.pool.Exec(t.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('GET /a'), ('=cmd,"b"'), ('daily');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, 3, 2, 1, 0, 30, 70
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name = 'acme' AND e.name IN ('GET /a', '=cmd,"b"') AND p.name IN ('', 'daily')`)
	require.NoError(t, err)
	return w
}

// midnight returns the begin of a day, some days from today.
func midnight(days int) string {
	return time.Now().UTC().AddDate(0, 0, days).Format("2006-01-02T00:00:00Z")
}

func TestTheHistoryOfAnOrgIsFilteredAndGrouped(t *testing.T) {
	t.Parallel()
	w := withHistory(t)
	for query, want := range map[string]struct{ rows, admitted int }{
		"":                            {1, 6},
		"?step=1d":                    {1, 6},
		"?step=1m&endpoint=GET+/a":    {1, 3},
		"?group_by=endpoint":          {2, 6},
		"?group_by=endpoint%2Bpolicy": {4, 12},
		"?policy=daily":               {1, 6},
		"?policy=none":                {0, 0},
		"?step=1d&from=" + midnight(-9) + "&to=" + midnight(0): {0, 0},
		"?step=1d&from=" + midnight(0) + "&to=" + midnight(1):  {1, 6},
	} {
		got := read[rows.UsageHistory](w, w.want(w.as("GET", acmeHistory+query, ""), http.StatusOK))
		var admitted int64
		for _, row := range got.Items {
			admitted += row.Admitted
		}
		if len(got.Items) != want.rows || admitted != int64(want.admitted) || got.Tenant != "acme" {
			t.Errorf("%s: %+v, want %d rows with %d admitted", query, got, want.rows, want.admitted)
		}
	}
}

func TestTheHistoryOfAPolicyCoversThePeriodOfAnOrg(t *testing.T) {
	t.Parallel()
	month := schema.Limit{
		Name: "daily", Scope: "tenant", Limit: 1000, Algorithm: "fixed_window", Period: "month", TimeZone: "Asia/Tokyo",
	}
	limits := []schema.Limit{month, {Name: "rolling", Scope: "tenant", Limit: 10, WindowSize: 60}}
	config := schema.Config{OnMissingUser: "skip", Global: schema.Global{Limits: limits}}.WithDefaults()
	w := withHistory(t, func(o *api.Options) { o.Decider = deciderOf(t, config, shelf{}, policy.Rows{}) })
	get := func(query string) rows.UsageHistory {
		return read[rows.UsageHistory](w, w.want(w.as("GET", acmeHistory+query, ""), http.StatusOK))
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE rate_limiter.usage_names SET unit = 'usd' WHERE name = 'daily'`)
	require.NoError(t, err)
	now, previous := get("?policy=daily&period=current"), get("?policy=daily&period=previous&group_by=endpoint")
	if now.Step != "period" || now.Period != "month" || now.TimeZone != "Asia/Tokyo" || now.Inexact ||
		len(now.Items) != 1 || now.Items[0].Admitted != 6 || *now.Items[0].Cost != 60 || now.Items[0].Unit != "usd" ||
		!now.Items[0].At.Equal(now.From) {
		t.Errorf("the current month is %+v", now)
	}
	midnight := now.From.Add(9 * time.Hour)
	if !previous.To.Equal(now.From) || midnight.Day() != 1 || midnight.Hour() != 0 || len(previous.Items) != 0 ||
		!previous.From.Add(9*time.Hour).Equal(midnight.AddDate(0, -1, 0)) {
		t.Errorf("the previous month is %+v", previous)
	}
	for query, place := range map[string]string{
		"?period=current":                                      "query.period",
		"?policy=daily&period=current&step=1h":                 "query.period",
		"?policy=daily&period=next":                            "query.period",
		"?policy=rolling&period=current":                       "query.policy",
		"?policy=none&period=current":                          "query.policy",
		"?policy=daily&period=current&to=2026-11-01T00:00:00Z": "query.period",
	} {
		w.wantFaults(w.as("GET", acmeHistory+query, ""), place)
	}
	w.want(w.do(call{ofAcme, "GET", acmeHistory + "?policy=daily&period=current", "", nil}), http.StatusForbidden)

	const export = "/v1/ratelimit/usage/export?"
	var list []rows.UsageExportRow
	for cursor := ""; len(list) == 0 || cursor != ""; {
		page := read[answers.UsageExport](w, w.want(w.as("GET", export+"policy=daily&period=current&limit=1&cursor="+cursor,
			""), http.StatusOK))
		list, cursor = append(list, page.Items...), page.NextCursor
	}
	if len(list) != 2 || list[0].Tenant != "acme" || list[0].Endpoint == list[1].Endpoint || *list[0].Cost != 30 ||
		list[0].CostUSD != "0.00003" ||
		list[0].Day != midnight.Format(time.DateOnly) || !list[0].To.Equal(now.To) || list[0].TimeZone != "Asia/Tokyo" ||
		list[0].Closed {
		t.Errorf("the export is %+v", list)
	}
	w.wantFaults(w.as("GET", export+"period=current", ""), "query.period")
	w.wantFaults(w.as("GET", export+"policy=daily&period=current&month=2026-11", ""), "query.period")
	w.wantFaults(w.as("GET", export+"policy=daily", ""), "query.month")
	w = withHistory(t)
	w.want(w.as("GET", acmeHistory+"?policy=daily&period=current", ""), http.StatusServiceUnavailable)
}

func TestTheHistoryByModelHasTokensAndMoneyOfDays(t *testing.T) {
	t.Parallel()
	w := withHistory(t)
	_, err := w.pool.Exec(t.Context(), `
		INSERT INTO rate_limiter.usage_names (name) VALUES ('globex');
		INSERT INTO rate_limiter.usage_models (day, tenant, model, calls, prompt_tokens, completion_tokens, micro_usd)
		SELECT timezone('UTC', now())::date - d, id, m, 2, 30, 4, 1500000
		FROM rate_limiter.usage_names, (VALUES (0, 'gpt-4o'), (0, '=cmd'), (9, 'gpt-4o'), (31, 'old')) v (d, m)
		WHERE name IN ('acme', 'globex')`)
	require.NoError(t, err)
	for _, at := range []string{acmeHistory, acmeUsage} {
		for _, token := range []string{viewer, ofAcme} { // an org reads its own
			a := w.want(w.do(call{token, "GET", at + "?group_by=model", "", nil}), http.StatusOK)
			got := read[rows.UsageHistory](w, a)
			if len(got.Models) != 3 || len(got.Items) != 0 || got.Step != "1d" || got.Models[0].Day >= got.Models[1].Day ||
				got.Models[1].Model != "=cmd" || got.Models[2].USD != "1.50" || got.Models[2].CompletionTokens != 4 {
				t.Errorf("%s by %s: %s", at, token, a.Body)
			}
		}
		for _, query := range []string{"&step=1h", "&endpoint=GET+/a", "&policy=daily"} {
			w.wantFaults(w.as("GET", at+"?group_by=model"+query, ""), "query.group_by")
		}
	}
	const export = "/v1/ratelimit/usage/export?by=model&open=true&limit=3&month="
	pages, list := 0, []string{}
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		page := read[answers.UsageExport](w, w.want(w.as("GET", export+midnight(0)[:7]+"&cursor="+cursor, ""),
			http.StatusOK))
		for _, m := range page.Models {
			if m.Day == midnight(0)[:10] {
				list = append(list, m.Tenant+" "+m.Model)
			}
		}
		cursor = page.NextCursor
	}
	if got := strings.Join(list, ", "); got != "acme =cmd, acme gpt-4o, globex =cmd, globex gpt-4o" || pages < 2 {
		t.Errorf("%d pages have %s", pages, got)
	}
}

func TestTheTokenOfAnOrgReadsItsHistoryButNotThatOfPolicies(t *testing.T) {
	t.Parallel()
	w := withHistory(t)
	a := w.want(w.do(call{ofAcme, "GET", acmeHistory + "?group_by=endpoint", "", nil}), http.StatusOK)
	if text := a.Body.String(); strings.Contains(text, "70") || !strings.Contains(text, `"admitted":3`) {
		t.Errorf("the answer is %s, want the requests without what is left of a limit", text)
	}
	for _, query := range []string{"?policy=daily", "?group_by=policy"} {
		w.want(w.do(call{ofAcme, "GET", acmeHistory + query, "", nil}), http.StatusForbidden)
	}
	w.want(w.do(call{ofGlobex, "GET", acmeHistory, "", nil}), http.StatusForbidden)
}

func TestAHistoryThatIsTooLongIsDenied(t *testing.T) {
	t.Parallel()
	w := open(t)
	for query, path := range map[string]string{
		"?step=1m&from=2026-01-01T00:00:00Z":                 "query.step",
		"?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "query.from",
		"?to=9999-12-31T23:59:59Z&step=1d":                   "query.to",
		"?to=0001-01-02T00:00:00Z&step=1d":                   "query.from",
		"?step=5m&group_by=tenant&from=yesterday":            "query.from query.group_by query.step",
	} {
		w.wantFaults(w.as("GET", acmeHistory+query, ""), path)
	}
}

func TestUsageWithATimeAStepOrAGroupIsTheHistory(t *testing.T) {
	t.Parallel()
	w := withHistory(t)
	for _, token := range []string{viewer, ofAcme} {
		for _, query := range []string{
			"step=1h", "group_by=endpoint", "step=1m&endpoint=GET+/a", "step=1d&policy=daily", "step=1h&group_by=policy",
			"from=" + midnight(0) + "&to=" + midnight(1), "to=" + midnight(1), "step=5m",
			"from=" + midnight(1) + "&to=" + midnight(0),
		} {
			history := w.do(call{token, "GET", acmeHistory + "?" + query, "", nil})
			got := w.want(w.do(call{token, "GET", acmeUsage + "?" + query, "", nil}), history.Code)
			if a, b := withoutTimes(got.Body.String()), withoutTimes(history.Body.String()); a != b {
				t.Errorf("%s: %s, want %s", query, a, b)
			}
		}
	}
	w.wantFaults(w.as("GET", acmeUsage+"?step=1h&user=u_42&tier=gold", ""), "query.tier query.user")
	for _, at := range []string{acmeUsage, nearLimit} { // there is no plugin config
		w.want(w.as("GET", at, ""), http.StatusServiceUnavailable)
	}
}

// withoutTimes returns a text without the begin and the end that follow from the time of the request.
func withoutTimes(text string) string {
	return regexp.MustCompile(`"(from|to|instance)":"[^"]*"`).ReplaceAllString(text, "")
}

const usageTop = "/v1/ratelimit/usage/top"

// withRanking returns a world in which four tenants, one of them without a name, have used an endpoint lately.
func withRanking(t *testing.T) *world {
	t.Helper()
	w := open(t)
	_, err := w.pool.Exec(t.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), (E'=cmd,"b"\n'), ('globex'), ('daily'), ('burst');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, admitted, 0, denied, 0, cost
		FROM (VALUES ('acme', '', 10, 5, 0), ('acme', 'daily', 10, 5, 300), ('acme', 'burst', 10, 0, 10),
				('globex', '', 20, 0, 0), ('globex', 'daily', 20, 0, -5),
				(E'=cmd,"b"\n', '', 30, 1, 0), (E'=cmd,"b"\n', 'burst', 30, 1, 600), ('', '', 1, 7, 0)
			) v (tenant, policy, admitted, denied, cost)
		JOIN rate_limiter.usage_names t ON t.name = v.tenant JOIN rate_limiter.usage_names e ON e.name = ''
		JOIN rate_limiter.usage_names p ON p.name = v.policy`)
	require.NoError(t, err)
	return w
}

// ranked returns the orgs of a ranking, each with the number that it is ranked by.
func ranked(top *rows.UsageTop) string {
	var list []string
	for _, r := range top.Items {
		n := map[string]int64{"admitted": r.Admitted, "denied": r.Denied, "cost": r.Cost}[top.By]
		list = append(list, fmt.Sprintf("%q %d", r.Tenant, n))
	}
	return strings.Join(list, ", ")
}

func TestOrgsAreRankedByWhatTheyUsed(t *testing.T) {
	t.Parallel()
	w := withRanking(t)
	for query, want := range map[string]string{
		"":                                 `"=cmd,\"b\"\n" 30, "globex" 20, "acme" 10, "" 1`,
		"?limit=2":                         `"=cmd,\"b\"\n" 30, "globex" 20`,
		"?by=denied":                       `"" 7, "acme" 5, "=cmd,\"b\"\n" 1`,
		"?by=denied&last=1m":               `"" 7, "acme" 5, "=cmd,\"b\"\n" 1`,
		"?by=denied&last=30d":              `"" 7, "acme" 5, "=cmd,\"b\"\n" 1`,
		"?by=cost":                         `"=cmd,\"b\"\n" 600, "acme" 310`,
		"?by=cost&policy=daily":            `"acme" 300`,
		"?policy=daily":                    `"globex" 20, "acme" 10`,
		"?policy=none":                     ``,
		"?from=" + midnight(0):             `"=cmd,\"b\"\n" 30, "globex" 20, "acme" 10, "" 1`,
		"?last=2d&to=" + midnight(-1):      ``,
		"?from=2020-01-01T00:00:00Z":       `"=cmd,\"b\"\n" 30, "globex" 20, "acme" 10, "" 1`,
		"?last=90d&policy=daily&by=denied": `"acme" 5`,
	} {
		top := read[rows.UsageTop](w, w.want(w.as("GET", usageTop+query, ""), http.StatusOK))
		if got := ranked(&top); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

func TestARankingHasTheStepThatItsTimeIsCutTo(t *testing.T) {
	t.Parallel()
	w := open(t)
	for query, step := range map[string]string{
		"?last=2h": "1m", "?last=48h": "1h", "?last=3d": "1d", "": "1h",
		"?last=1h&to=" + midnight(-10): "1h", "?last=1h&to=" + midnight(-90): "1d",
	} {
		if top := read[rows.UsageTop](w, w.want(w.as("GET", usageTop+query, ""), http.StatusOK)); top.Step != step {
			t.Errorf("%s: the step is %s, want %s", query, top.Step, step)
		}
	}
}

func TestARankingOfAnInvalidTimeIsDeniedWithTheParameter(t *testing.T) {
	t.Parallel()
	w := open(t)
	for query, path := range map[string]string{
		usageTop + "?last=week": "query.last", usageTop + "?last=0s": "query.last",
		usageTop + "?last=1h&from=2026-01-01T00:00:00Z":                 "query.last",
		usageTop + "?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "query.from",
		usageTop + "?by=soft&limit=1001":                                "query.by query.limit",
		nearLimit + "?last=25h":                                         "query.last",
		nearLimit + "?above=1.1":                                        "query.above",
		nearLimit + "?above=NaN":                                        "query.above",
		nearLimit + "?above=-Inf":                                       "query.above",
		nearLimit + "?above=-0.1&limit=0":                               "query.above query.limit",
	} {
		w.wantFaults(w.as("GET", query, ""), path)
	}
}

func TestAnExportHasEveryRowOnceOverItsPages(t *testing.T) {
	t.Parallel()
	w := withRanking(t)
	_, err := w.pool.Exec(t.Context(), `
		INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT date_trunc('hour', now()), tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost
		FROM rate_limiter.usage_minutes`)
	require.NoError(t, err)
	path := "/v1/ratelimit/usage/export?by=policy&open=true&month=" + midnight(0)[:7]
	list := func(limit string) (found []rows.UsageExportRow) {
		for cursor := ""; ; {
			page := read[answers.UsageExport](w, w.want(w.as("GET", path+limit+cursor, ""), http.StatusOK))
			if found, cursor = append(found, page.Items...), "&cursor="+page.NextCursor; page.NextCursor == "" {
				return found
			}
		}
	}
	all := list("")
	if paged := list("&limit=1"); len(all) != 8 || !reflect.DeepEqual(paged, all) {
		t.Errorf("the pages have %+v, want %+v", paged, all)
	}
	if a := w.as("GET", path+"&policy=daily", ""); a.Code != http.StatusUnprocessableEntity {
		t.Errorf("by and policy: %d %s", a.Code, a.Body)
	}
	now := time.Now().UTC().Format(time.RFC3339)
	for _, place := range []string{
		"null",
		`{"Day":"0001-01-01T00:00:00Z","Until":"` + now + `"}`,
		`{"Day":"` + now + `","Until":"9998-01-01T00:00:00Z"}`,
		`{"Day":"` + now + `","Until":"` + now + `","After":["\u0000","",""]}`,
	} {
		w.wantFaults(w.as("GET", path+"&cursor="+answers.Cursor(place), ""), "query.cursor")
	}
}

const nearLimit = "/v1/ratelimit/near-limit"

// nearing returns a world in which limits left tenants little in the last minute. acme has the tier enterprise.
func nearing(t *testing.T) *world {
	t.Helper()
	rows := enterprise()
	rows.Overrides = []policy.Override{
		policytest.Override(1, schema.Override{Kind: schema.KindBan, Tenant: "banned"}),
		policytest.Override(2, schema.Override{Kind: schema.KindExempt, Tenant: "exempt"}),
	}
	buckets := shelf{memory.New(memory.Options{Now: clock})}
	decider := deciderOf(t, plan(), buckets, rows)
	w := open(t, func(o *api.Options) { o.Decider, o.Buckets = decider, buckets })
	_, err := w.pool.Exec(t.Context(), `SELECT rate_limiter.keep_usage_partitions();
		INSERT INTO rate_limiter.usage_names (name)
		VALUES (''), ('acme'), ('=cmd,"b"'), ('globex'), ('banned'), ('exempt'),
			('daily'), ('all/default/'), ('POST /records/{id}'), ('search');
		INSERT INTO rate_limiter.usage_names (name)
		SELECT policy || '/default/' || tier FROM unnest(ARRAY['daily', 'writes', 'per-user', 'gone']) policy,
			unnest(ARRAY['enterprise', 'essentials']) tier;
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()) - minutes * interval '1 minute', t.id, e.id, p.id, 1, 0, 0, 0, 0, remaining
		FROM (VALUES ('acme', '', 'daily', 0, 300), ('acme', 'search', 'daily', 0, 200), ('acme', 'search', 'daily', 3, 150),
				('acme', 'search', 'daily', 30, 0), ('acme', 'POST /records/{id}', 'daily', 1, 180),
				('acme', 'POST /records/{id}', 'writes', 0, 1),
				('acme', 'search', 'per-user', 0, 5), ('acme', '', 'all', 0, 0), ('acme', '', 'gone', 0, 0),
				('globex', '', 'daily', 0, 9), ('globex', 'search', 'daily', 0, NULL), ('=cmd,"b"', '', 'daily', 1, 2),
				('banned', '', 'daily', 1, 0), ('exempt', '', 'daily', 1, 0), ('', '', 'daily', 0, 0)
			) v (tenant, endpoint, policy, minutes, remaining)
		JOIN rate_limiter.usage_names t ON t.name = v.tenant JOIN rate_limiter.usage_names e ON e.name = v.endpoint
		JOIN rate_limiter.usage_names p ON p.name = v.policy || '/default/' ||
			CASE WHEN v.policy = 'all' THEN '' WHEN v.tenant = 'acme' THEN 'enterprise' ELSE 'essentials' END
		UNION ALL SELECT date_trunc('minute', now()), t.id, e.id, p.id, 1, 0, 0, 0, 0, 0 -- usage by another tier's limit
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name = 'acme' AND e.name = 'search' AND p.name = 'daily/default/essentials'`)
	require.NoError(t, err)
	return w
}

func TestOrgsThatUsedMostOfALimitAreListedWithTheLimitInForce(t *testing.T) {
	t.Parallel()
	w := nearing(t)
	for query, want := range map[string]string{
		"": `acme writes at "POST /records/{id}": 1 of 20 (0.95), acme per-user at "search": 5 of 50 (0.9), ` +
			`acme daily at "search": 150 of 1000 (0.85), =cmd,"b" daily at "": 2 of 10 (0.8)`,
		"?above=0.81&limit=2": `acme writes at "POST /records/{id}": 1 of 20 (0.95), ` +
			`acme per-user at "search": 5 of 50 (0.9)`,
		"?above=1":          ``,
		"?above=1&last=40m": `acme daily at "search": 0 of 1000 (1)`,
	} {
		got := read[answers.NearLimits](w, w.want(w.as("GET", nearLimit+query, ""), http.StatusOK))
		var list []string
		for _, n := range got.Items {
			list = append(list, fmt.Sprintf("%s %s at %q: %d of %d (%v)", n.Org, n.Policy, n.Endpoint, n.Remaining, n.Limit,
				n.Fraction))
		}
		if got := strings.Join(list, ", "); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}
