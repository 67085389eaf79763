package portal

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// consolePages are the pages of operators that need no tenant.
var consolePages = []string{
	home, "/portal/fleet", "/portal/tenants", "/portal/top", "/portal/near-limit", "/portal/denials", "/portal/candidates",
	"/portal/prices", "/portal/abuse", "/portal/audit",
}

// missing fails the test if a page contains one of these texts.
func (w *world) missing(a shown, texts ...string) {
	w.Helper()
	for _, text := range texts {
		if strings.Contains(a.text, text) {
			w.Errorf("%s %s has %q:\n%s", a.Request.Method, a.Request.URL, text, a.text)
		}
	}
}

func TestViewersReadAndHaveNoWrites(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(viewerSecret)
	page := w.want(b.get("/portal/tenants/acme"), http.StatusOK)
	w.missing(page, "overrides/new", "/forgive", "/end")
	for _, path := range []string{
		"/portal/tenants/acme/overrides/new", "/portal/tenants/acme/overrides/1/end", "/portal/tenants/acme/forgive",
	} {
		w.want(b.get(path), http.StatusForbidden)
	}
	ban := url.Values{"kind": {"ban"}, "reason": {"r"}, "expires_in": {permanently}}
	for _, path := range []string{
		"/portal/tenants/acme/overrides/new", "/portal/tenants/acme/overrides/1/end",
		"/portal/tenants/acme/forgive",
	} {
		w.want(b.post(path, ban), http.StatusForbidden)
	}
	if all, err := w.store.Overrides(t.Context(), rows.OverrideFilter{Max: 10}); err != nil || len(all) > 0 {
		t.Errorf("there are overrides of a viewer: %v (%v)", all, err)
	}
}

func TestAnOverrideIsPreviewedThenAppliedThenEnded(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, "/portal/tenants/acme/overrides/new",
		"1,000,000 requests per day, shared by all users of acme, in whole days UTC")
	w.want(b.get("/portal/tenants/acme/overrides/new"), http.StatusOK, `<option value="daily">`)
	form := url.Values{
		"kind": {"custom_limit"}, "policy": {"daily"}, "limit": {"2,000,000"}, "expires_at": {"2031-01-03T14:00"},
		"reason": {"launch week"}, "factor": {"9"},
	}
	preview := w.want(b.post("/portal/tenants/acme/overrides/new", form), http.StatusOK,
		"acme: daily 1,000,000 → 2,000,000 per day until 3 Jan 2031 14:00 UTC", "Apply")
	if all, err := w.store.Overrides(t.Context(), rows.OverrideFilter{Max: 10}); err != nil || len(all) > 0 {
		t.Fatalf("a preview wrote %v (%v)", all, err)
	}
	sent := hiddenFields(preview.text)
	if to := w.location(b.post("/portal/tenants/acme/overrides/new", sent)); to != "/portal/tenants/acme" {
		t.Errorf("after applying: %s", to)
	}
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, "Override 1 is made", "No node is live")
	w.location(b.post("/portal/tenants/acme/overrides/new", sent)) // a second click
	all, err := w.store.Overrides(t.Context(), rows.OverrideFilter{Max: 10})
	if err != nil || len(all) != 1 || all[0].Limit != 2_000_000 || all[0].Author != "token:ann" ||
		all[0].ExpiresAt.UTC().Format(pickerLayouts[1]) != "2031-01-03T14:00" {
		t.Fatalf("the overrides are %+v (%v), want one", all, err)
	}
	w.want(b.get("/portal/tenants/acme/overrides/1/end"), http.StatusOK, "<del>custom_limit</del>", "launch week")
	page := b.post("/portal/tenants/acme/overrides/1/end", nil)
	w.want(page, http.StatusUnprocessableEntity, `aria-describedby="reason-hint"`)
	w.location(b.post("/portal/tenants/acme/overrides/1/end", url.Values{"reason": {"over"}}))
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, "Override 1 has ended")
	w.want(b.get("/portal/tenants/globex/overrides/1/end"), http.StatusNotFound)
	w.want(b.get("/portal/audit?kind=override"), http.StatusOK, "delete override 1", "insert override 1", "− removed",
		"<del>2000000</del>", "+ added", "<ins>2000000</ins>", "launch week", "over")
	w.want(b.get("/portal/audit?actor=eve"), http.StatusOK, "There are no such changes.")
}

func TestAPriceIsPreviewedThenSet(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	form := url.Values{
		"model": {"gpt-4o*"}, "prompt": {"2.50"}, "completion": {"0"}, "starts_at": {"2031-01-03T14:00"}, "reason": {"new"},
	}
	preview := w.want(b.post("/portal/new/prices", form), http.StatusOK, "<ins>2031-01-03T14:00:00Z</ins>")
	w.want(b.get("/portal/prices"), http.StatusOK, "There are none.")
	w.location(b.post("/portal/new/prices", hiddenFields(preview.text)))
	w.want(b.get("/portal/prices"), http.StatusOK, "The price of gpt-4o* is set", "2.5 USD", "coming")
	w.want(b.get("/portal/prices?state=in_force"), http.StatusOK, "There are none of this kind.")
	form.Set("prompt", "0.1234567")
	w.want(b.post("/portal/new/prices", form), http.StatusUnprocessableEntity, `value="0.1234567"`, "at most 6 decimals")
}

func TestATopUpIsPreviewedWithTheNumbersBeforeAndAfter(t *testing.T) {
	t.Parallel()
	monthly := schema.Limit{Name: "monthly", Scope: "tenant", Limit: 20_000, Algorithm: "fixed_window", Period: "month"}
	w := overDatabase(t, pgtest.Pool(t, pgtest.Shared(t).Database(t)), policy.Rows{}, setting{
		config: schema.Config{OnMissingUser: "skip", Tiers: []schema.Tier{{Name: "free", Limits: []schema.Limit{monthly}}}},
		now:    time.Now(),
	})
	b := w.signedIn(adminSecret)
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, "/portal/tenants/acme/overrides/new?kind=topup")
	w.want(b.get("/portal/tenants/acme/overrides/new?kind=topup"), http.StatusOK, `<option value="topup" selected`)
	form := url.Values{
		"kind": {"topup"}, "policy": {"monthly"}, "amount": {"100,000"}, "reason": {"ticket"}, "expires_in": {"1d"},
	}
	preview := w.want(b.post("/portal/tenants/acme/overrides/new", form), http.StatusOK,
		"acme: monthly 20,000 → 120,000 per month", "Apply")
	sent := hiddenFields(preview.text)
	w.location(b.post("/portal/tenants/acme/overrides/new", sent))
	w.location(b.post("/portal/tenants/acme/overrides/new", sent)) // a second click
	all, err := w.store.Overrides(t.Context(), rows.OverrideFilter{Max: 10})
	if err != nil || len(all) != 1 || all[0].Amount != 100_000 || all[0].ExpiresAt.UTC().Day() != 1 {
		t.Fatalf("the overrides are %+v (%v), want one top-up", all, err)
	}
	form.Set("amount", "lots")
	w.want(b.post("/portal/tenants/acme/overrides/new", form), http.StatusUnprocessableEntity, "body.amount")
}

// applied returns a form as the button of its preview sends it.
func applied(form url.Values) url.Values {
	sent := url.Values{applies: {"yes"}}
	maps.Copy(sent, form)
	return sent
}

// hiddenFields returns the hidden fields of a page's forms.
func hiddenFields(page string) url.Values {
	fields := url.Values{}
	for part := range strings.SplitSeq(page, `<input type="hidden" name="`) {
		name, value, _ := strings.Cut(part, `" value="`)
		if value, _, isField := strings.Cut(value, `">`); isField && !strings.ContainsAny(name, "<> ") {
			fields.Set(name, html.UnescapeString(value))
		}
	}
	return fields
}

func TestAnEndThatIsChosenAfterAPreviewCounts(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	form := url.Values{"kind": {"ban"}, "expires_in": {"1d"}, "reason": {"abuse"}}
	page := w.want(b.post("/portal/tenants/acme/overrides/new", form), http.StatusOK, "Apply")
	_, below, _ := strings.Cut(page.text, "Change it first")
	if !strings.Contains(below, `<input id="expires_at" name="expires_at" value="" `) {
		t.Errorf("the form below a preview has an end that was not typed:\n%s", below)
	}
	if end := hiddenFields(page.text).Get("expires_at"); end == "" {
		t.Error("applying a preview would set another end than it shows")
	}
}

func TestFaultsOfAnOverrideAreShownAtItsFields(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	for _, sent := range []url.Values{{}, applied(nil)} {
		sent["kind"], sent["expires_in"] = []string{"custom_limit"}, []string{"1d"}
		sent["burst"], sent["reason"] = []string{"lots"}, []string{hostile}
		w.want(b.post("/portal/tenants/acme/overrides/new", sent), http.StatusUnprocessableEntity,
			`id="policy-hint"`, `aria-invalid="true"`, "&lt;script&gt;")
	}
	w.want(b.post("/portal/tenants/acme/overrides/new", url.Values{
		"kind": {"custom_limit"}, "policy": {"weekly"}, "limit": {"5"}, "expires_in": {"1d"}, "reason": {"r"},
	}), http.StatusOK, "Nothing would change", "weekly", `<button class="quiet">Apply</button>`)
}

func TestANoticeReportsWhenAllLiveNodesEnforceAWrite(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(adminSecret)
	report := func(node string, version int64) {
		r := policysync.Report{Node: node, Version: version, Source: policysync.FromPostgres}
		require.NoError(t, r.Write(t.Context(), w.pool))
	}
	report("edge-1", 1_000) // it has the version of any write of this test
	report("edge-2", 0)
	ban := url.Values{"kind": {"ban"}, "reason": {"abuse"}, "expires_in": {permanently}}
	w.want(b.post("/portal/tenants/acme/overrides/new", ban), http.StatusOK, "acme: all requests are denied for good")
	w.location(b.post("/portal/tenants/acme/overrides/new", applied(ban)))
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, `data-live="/portal/reach?version=1">`,
		"1 of 2 live nodes enforce it; behind: edge-2.</span>", `<a href="/portal/fleet">Fleet</a>`)
	w.want(b.get("/portal/fleet"), http.StatusOK, "edge-1", "edge-2", "behind by 1 version", "not enforced by all nodes")
	reach := b.watch("/portal/reach?version=1")
	if first := reach.next(); first != "1 of 2 live nodes enforce it; behind: edge-2." {
		t.Errorf("the notice begins with %s", first)
	}
	report("edge-2", 1_000)
	if next := reach.next(); next != "All live nodes enforce it: 2 nodes." {
		t.Errorf("the notice goes on with %s", next)
	}
	w.location(b.post("/portal/tenants/globex/overrides/new", applied(ban)))
	w.want(b.get("/portal/tenants/globex"), http.StatusOK, "All live nodes enforce it: 2 nodes.")
	w.want(b.get("/portal/fleet"), http.StatusOK, "enforced by all nodes")
}

func TestTheFleetShowsLeasesAndTheRedisThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	b := w.signedIn(viewerSecret)
	report := func(leases int, away float64) {
		r := policysync.Report{Node: "edge-1", Source: policysync.FromPostgres, Condition: policysync.Condition{
			Leases: leases, Redis: []policysync.Redis{{Name: "<b>r:6379", AwaySeconds: away}},
		}}
		require.NoError(t, r.Write(t.Context(), w.pool))
	}
	report(1234, 90)
	const is = "degraded: Redis &lt;b&gt;r:6379 does not answer since <time datetime="
	w.want(b.get("/portal/fleet"), http.StatusOK, is, "1 degraded", `data-label="Leases">1,234</td>`)
	w.want(b.get(home), http.StatusOK, "1 degraded")
	report(0, 0)
	w.missing(w.want(b.get("/portal/fleet"), http.StatusOK, "0 degraded", "&lt;b&gt;r:6379", "live"), is)
	w.missing(w.want(b.get(home), http.StatusOK), "degraded")
}

func TestNamesAndReasonsOfOthersNeverBecomeMarkup(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	by := rows.Change{Actor: hostile, Reason: hostile}
	if _, _, err := w.store.SetTenant(t.Context(), by, rows.Tenant{
		Tenant: schema.Tenant{ID: hostile, Tier: "free"}, Revision: rows.Absent,
	}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.store.AddOverride(t.Context(), by, rows.Override{Override: schema.Override{
		Kind: "exempt", Tenant: hostile, Reason: hostile, Permanent: true, PublicNote: hostile,
	}}); err != nil {
		t.Fatal(err)
	}
	w.exec(`INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at)
		VALUES ($1, '{"step": "warn"}', 'enforce', $1, now())`, hostile)
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	w.exec(`WITH names AS (INSERT INTO rate_limiter.usage_names (name) VALUES (''), ($1) RETURNING id, name)
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT date_trunc('minute', now()), t.id, t.id, p.id, 1, 0, 0, 0, 1 FROM names t, names p
		WHERE t.name <> '' AND p.name = ''`, hostile)
	b := w.signedIn(adminSecret)
	of := "/portal/tenants/" + url.PathEscape(hostile)
	for _, path := range append(consolePages, of, of+"?policy=daily&range=7d", of+"/overrides/new",
		of+"/overrides/1/end", of+"/forgive",
		"/portal/tenants?q="+url.QueryEscape(hostile), "/portal/audit?tenant="+url.QueryEscape(hostile),
		"/portal/denials?tenant="+url.QueryEscape(hostile), "/portal/top?policy="+url.QueryEscape(hostile),
	) {
		page := w.want(b.get(path), http.StatusOK)
		w.missing(page, "<script>alert", "<img", "ZgotmplZ", "style=")
	}
	for _, path := range []string{"/portal/tenants", "/portal/audit", "/portal/abuse", "/portal/top", of} {
		w.want(b.get(path), http.StatusOK, "&lt;script&gt;")
	}
}

func TestUsageOverTimeHasTheLimitDrawnIn(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.exec(`SELECT rate_limiter.keep_usage_partitions()`)
	w.exec(`INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('daily')`)
	w.exec(`INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, 7, 0, 3, 0, 250 FROM rate_limiter.usage_names t,
			rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name = 'acme' AND e.name = '' AND p.name IN ('', 'daily')`)
	b := w.signedIn(viewerSecret)
	w.want(b.get("/portal/tenants/acme?policy=daily&range=1h"), http.StatusOK,
		`data-line="1000000"`, "the highest is 250", "Used of daily", "3 denied", "250 tokens")
	page := w.want(b.get("/portal/tenants/acme"), http.StatusOK, "the highest is 7 ", "the highest is 3 ",
		"per 15 minutes")
	w.missing(page, "data-line")
	w.missing(page, "has no line")
}

func TestALimitWithoutALineSaysWhy(t *testing.T) {
	t.Parallel()
	w := open(t, func(o *Options) { o.Now = func() time.Time { return noon } })
	b := w.signedIn(viewerSecret)
	const drawn, daily = "The line is the limit in force now.", `"window_size":86400,"algorithm":"fixed_window"`
	for _, c := range []struct{ scope, window, why string }{
		{"tenant", daily, drawn},
		{"user", daily, "has no line"},
		{"global", daily, "has no line"},
		{"tenant", `"period":"month","time_zone":"Europe/Berlin","algorithm":"fixed_window"`, drawn},
		{"tenant", `"period":"month","anchor":{"day":15},"time_zone":"UTC","algorithm":"fixed_window"`, drawn},
		{"tenant", `"period":"week","anchor":{"weekday":"friday"},"algorithm":"fixed_window"`, "has no line"},
		{"user", `"period":"month","time_zone":"UTC","algorithm":"fixed_window"`, "has no line"},
		{"tenant", `"max_duration":60,"algorithm":"concurrency"`, "has no line"},
	} {
		limits := fmt.Sprintf(`{"limits":[{"policy":"daily","scope":%q,"limit":1000,%s}]}`, c.scope, c.window)
		w.api.answer("GET /v1/orgs/acme/ratelimit/policies", http.StatusOK, limits)
		w.api.answer("GET /v1/orgs/acme/ratelimit/usage/history", http.StatusOK, `{"from":"2026-11-19T00:00:00Z",
			"to":"2026-11-22T12:00:00Z","items":[{"at":"2026-11-19T11:00:00Z","admitted":7,"cost":7},
				{"at":"2026-11-22T11:00:00Z","admitted":50,"cost":50}]}`)
		page := w.want(b.get("/portal/tenants/acme?policy=daily"), http.StatusOK, c.why, "In all 50 admitted")
		if line := strings.Contains(page.text, "data-line"); line != (c.why == drawn) {
			t.Errorf("%+v: a line is drawn: %v", c, line)
		}
	}
}

func TestAForgivenTenantLeavesTheListOfAbuse(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.exec(`INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at)
		VALUES ('acme', '{"step": "half"}', 'enforce', 'denied 90 %', now())`)
	b := w.signedIn(adminSecret)
	w.want(b.get("/portal/abuse"), http.StatusOK, "acme", "half", "denied 90 %", "/portal/tenants/acme/forgive")
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, "denied 90 %")
	form := url.Values{"for": {"1h"}}
	w.want(b.post("/portal/tenants/acme/forgive", form), http.StatusUnprocessableEntity, `id="reason-hint"`)
	form.Set("reason", "a test")
	if to := w.location(b.post("/portal/tenants/acme/forgive", form)); to != "/portal/abuse" {
		t.Errorf("after forgiving: %s", to)
	}
	w.missing(w.want(b.get("/portal/abuse"), http.StatusOK, "acme is forgiven"), "denied 90 %")
}

func TestTheReportOfACandidateIsShown(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	const daily = `{"name":"daily","tier":"gold","limit":%d,"window":"1d"}`
	w.write("POST", "/v1/ratelimit/policies", fmt.Sprintf(daily, 1000))
	w.write("POST", "/v1/ratelimit/candidates", `{"name":"july","reason":"a trial"}`)
	w.write("PUT", "/v1/ratelimit/candidates/july/policies", fmt.Sprintf(daily, 500))
	b := w.signedIn(viewerSecret)
	w.want(b.get("/portal/candidates"), http.StatusOK, "/portal/candidates/july", "open", "a trial")
	w.want(b.get("/portal/candidates/july"), http.StatusOK, "No node has compared requests yet", "Update daily of gold",
		"~ changed", "<del>1000</del>", "<ins>500</ins>")
	w.want(b.get("/portal/candidates/august"), http.StatusNotFound)
	w.exec(`INSERT INTO rate_limiter.candidate_sources (candidate, source, login, last_seq, first_at, last_at)
		VALUES ('july', 'edge-1', 'kong', 1, now() - interval '1 hour', now())`)
	w.want(b.get("/portal/candidates/july?policy=daily"), http.StatusOK, "Only the candidate denies", "of a window seen")
}

// deny reports denials of acme, of endpoints that are numbered from first to last.
func (w *realWorld) deny(first, last int) {
	w.Helper()
	w.exec(fmt.Sprintf(`SELECT rate_limiter.report_recent_denials('n1', (SELECT json_agg(json_build_object(
		'event', 'e' || i, 'tenant', 'acme', 'endpoint', 'GET /' || i, 'policy', 'daily', 'scope', 'tenant', 'age', 0,
		'reason', 'quota', 'shadow', false, 'count', 1, 'tenant_count', 1, 'user', '', 'ip', '') ORDER BY i)
		FROM generate_series(%d, %d) i))`, first, last))
}

func TestTheNextPageOfDenialsFollowsTheLastRowThatIsShown(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	w.deny(1, 60)
	b := w.signedIn(viewerSecret)
	w.want(b.get("/portal/denials?tenant=acme"), http.StatusOK, "<div data-live", ">GET /60<", "view=list", "rising")
	const list = "/portal/denials?tenant=acme&view=list"
	page := w.want(b.get(list), http.StatusOK, "<div data-live", ">GET /60<", ">GET /11<")
	w.want(b.get(next(page)), http.StatusOK, ">GET /10</code>", ">GET /1</code>")
	live := b.watch(list)
	if rows := live.next(); next(shown{text: rows}) != next(page) {
		t.Errorf("the live part begins with %s, want the link of the page: %s", rows, next(page))
	}
	w.deny(61, 80)
	rows := live.next()
	if !strings.Contains(rows, ">GET /80</code>") || !strings.Contains(rows, ">GET /31</code>") ||
		strings.Contains(rows, ">GET /30</code>") {
		t.Fatalf("after 20 denials the live part is %s, want 80 to 31", rows)
	}
	older := w.want(b.get(next(shown{text: rows})), http.StatusOK, ">GET /30</code>", ">GET /1</code>")
	w.missing(older, ">GET /31</code>")
}

func TestTheAuditIsFilteredByEachKind(t *testing.T) {
	page, err := templateFiles.ReadFile("templates/operator_audit.html")
	require.NoError(t, err)
	_, options, _ := strings.Cut(string(page), `(pairs "" "all" `)
	options, _, _ = strings.Cut(options, ")")
	var want []string
	for _, kind := range rows.AuditKinds {
		want = append(want, strconv.Quote(kind), strconv.Quote(kind)) // the value and its label
	}
	got := strings.Fields(options)
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the options are %s, want %s", got, want)
	}
}

func TestTheSearchOfTheConsoleLeadsToWhatDeniedARequestOrToATenant(t *testing.T) {
	t.Parallel()
	w := overAPI(t)
	const id, unknown = "23362be3186b8717e61304664ec43cb1", "00000000000000000000000000000000"
	w.exec(`SELECT rate_limiter.report_recent_denials('n1', $1)`, `[{"event":"a","age":0,"tenant":"acme",
		"endpoint":"POST /a","policy":"daily","scope":"tenant","limit":1000,"window_size":86400,"reason":"quota",
		"shadow":false,"count":1,"tenant_count":1,"user":"hmac:1","ip":"hmac:2","retry_after":7,"tier":"gold",
		"policy_for":"tenant","policy_id":17,"policy_version":31,"cost":3,"remaining":0,"penalty":6,
		"request_ids":["`+id+`"]}]`)
	w.exec(`INSERT INTO rate_limiter.overrides (kind, tenant, endpoint, reason, permanent, author)
		VALUES ('ban', 'acme', '', 'r', true, 'ann'), ('exempt', '', 'GET /health', 'r', true, 'ann');
		INSERT INTO rate_limiter.overrides (kind, tenant, "user", reason, permanent, author)
			VALUES ('ban', 'acme', 'u_7', 'r', true, 'ann');
		INSERT INTO rate_limiter.tenants (id, tier) VALUES ('7', 'gold')`)
	b := w.signedIn(viewerSecret)
	w.want(b.get("/portal/tenants/acme"), http.StatusOK, ">3: ban<", `data-label="On">user u_7<`)
	w.want(b.get("/portal/"), http.StatusOK, `action="/portal/search"`, "Tenant, request or override id")
	for q, to := range map[string]string{
		"+" + id: "/portal/denials?request_id=" + id, "acme%2Feu": "/portal/tenants/acme%2Feu", "": "/portal/tenants",
		"1": "/portal/tenants/acme#overrides", "%232": "/portal/audit?key=2&kind=override", "7": "/portal/tenants/7",
		"99": "/portal/tenants/99",
	} {
		if a := b.get("/portal/search?q=" + q); a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != to {
			t.Errorf("a search for %q leads to %q (%d), want %q", q, a.Header.Get("Location"), a.StatusCode, to)
		}
	}
	w.want(b.get("/portal/denials?request_id="+id), http.StatusOK, "acme</a>, tier gold, user hmac:1, address hmac:2",
		"daily: 1,000 per day, scope tenant", "row 17, tenant, rows of version 31, penalty 6", "0, and the request cost 3",
		"quota", "A retry at 20", "the end of penalty 6", "by policy 17")
	w.want(b.get("/portal/denials?request_id="+unknown), http.StatusOK, "7 days", "/portal/tenants/"+unknown)
}
