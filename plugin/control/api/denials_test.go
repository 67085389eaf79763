package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

const (
	denials    = "/v1/ratelimit/denials"
	orgDenials = "/v1/orgs/acme/ratelimit/denials"
)

// reports adds recent denials as a node does: an array of objects.
func (w *world) reports(all string) int {
	w.Helper()
	var added int
	err := w.pool.QueryRow(w.Context(), `SELECT rate_limiter.report_recent_denials('n1', $1)`, all).Scan(&added)
	require.NoError(w, err)
	return added
}

// reported is what each of the reported denials has, unless it says otherwise.
const reported = `"tenant":"acme","endpoint":"POST /records","policy":"daily","scope":"tenant","limit":100,
	"window_size":86400,"reason":"quota","shadow":false,"count":1,"tenant_count":1,"user":"hmac:1","ip":"hmac:2",
	"retry_after":7`

// denied adds denials by a limit of acme, by a shared one, by one of globex and by none.
func (w *world) denied() {
	w.Helper()
	w.reports(`[
		{"event":"a","age":4000000,` + reported + `},
		{"event":"b","age":3000000,` + reported + `,"policy":"platform","scope":"global","count":5,"tenant_count":2},
		{"event":"c","age":2000000,` + reported + `,"policy":"hidden","scope":"endpoint","tenant_count":0},
		{"event":"d","age":1000000,` + reported + `,"tenant":"globex"},
		{"event":"e","age":0,` + reported + `,"policy":"","scope":"","reason":"banned","limit":null,"window_size":null,
			"retry_after":null}]`)
}

func TestAnOrgReadsItsDenialsWithoutNumbersOfSharedLimits(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.denied()
	all := read[answers.DenialList](w, w.want(w.by(viewer, "GET", denials, ""), http.StatusOK))
	if len(all.Denials) != 5 || !all.Sampled || all.Denials[0].Reason != "banned" || all.Denials[4].Window != "1d" {
		t.Errorf("an operator reads %+v", all)
	}
	if shared := all.Denials[3]; shared.Policy != "platform" || shared.Limit == nil || shared.Count != 5 {
		t.Errorf("an operator reads %+v of a shared limit", shared)
	}
	a := w.want(w.by(ofAcme, "GET", orgDenials, ""), http.StatusOK)
	own := read[answers.DenialList](w, a).Denials
	if len(own) != 3 || strings.Contains(a.Body.String(), "hidden") || strings.Contains(a.Body.String(), "globex") {
		t.Fatalf("the org reads %s", a.Body)
	}
	if shared := own[1]; shared.Policy != "platform" || shared.Limit != nil || shared.Window != "" ||
		shared.RetryAfter != nil || shared.Count != 2 {
		t.Errorf("the org reads %+v of a shared limit", shared)
	}
	if d := own[2]; d.Policy != "daily" || *d.Limit != 100 || *d.RetryAfter != 7 || d.User != "hmac:1" ||
		d.IPHash != "hmac:2" || d.Result != "denied" {
		t.Errorf("the org reads %+v of its own limit", d)
	}
	w.want(w.by(ofGlobex, "GET", orgDenials, ""), http.StatusForbidden)
	w.want(w.by(ofAcme, "GET", denials, ""), http.StatusForbidden)
	w.want(w.by(ofAcme, "GET", orgDenials+"?tenant=globex", ""), http.StatusUnprocessableEntity)
}

func TestPagesOfDenialsHaveEachOnceWhileMoreAreReported(t *testing.T) {
	t.Parallel()
	w := open(t)
	var rows []string
	for _, id := range "abcdefghijklmnopqrstuvwxy" {
		rows = append(rows, `{"event":"`+string(id)+`","age":60000000,`+reported+`}`)
	}
	w.reports(`[` + strings.Join(rows, ",") + `]`)
	seen, cursor := 0, ""
	for page := range 10 {
		answer := w.want(w.by(ofAcme, "GET", orgDenials+"?limit=7&cursor="+cursor, ""), http.StatusOK)
		got := read[answers.DenialList](w, answer)
		seen += len(got.Denials)
		w.reports(`[{"event":"new` + string(rune('a'+page)) + `","age":0,` + reported + `}]`)
		if cursor = got.Next; cursor == "" {
			break
		}
	}
	if seen != len(rows) {
		t.Errorf("the pages have %d denials, want the %d of the first", seen, len(rows))
	}
}

func TestFiltersOfDenials(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.denied()
	for query, want := range map[string]int{
		"?tenant=globex": 1, "?policy=platform": 1, "?endpoint=POST%20/records": 5, "?endpoint=x": 0,
		"?since=1h": 5, "?since=0s": 0, "?since=2020-01-01T00:00:00Z": 5, "?since=9000-01-01T00:00:00Z": 0, "?limit=2": 2,
		"?tenant=acme&policy=daily": 1,
	} {
		got := read[answers.DenialList](w, w.want(w.as("GET", denials+query, ""), http.StatusOK))
		if len(got.Denials) != want {
			t.Errorf("%s: %d denials, want %d", query, len(got.Denials), want)
		}
	}
	for _, query := range []string{
		"?since=yesterday", "?since=-1h", "?since=99999-01-01T00:00:00Z", "?cursor=x", "?cursor=OS4x%3D", "?limit=0",
		"?limit=1001", "?org=acme",
	} {
		w.want(w.as("GET", denials+query, ""), http.StatusUnprocessableEntity)
	}
}

// requestID is the id of a denied request of acme.
const requestID = "23362be3186b8717e61304664ec43cb1"

// identified adds denials of requests with an id: by two limits of acme, by a shared one beside them, and by one of the
// config that is all of globex.
func (w *world) identified() {
	w.Helper()
	const ids = `"request_ids":["` + requestID + `","shared-only"],"tier":"gold","policy_version":31,"cost":3,"remaining":2`
	w.reports(`[
		{"event":"a","age":0,` + reported + `,` + ids + `,"policy_for":"tenant","policy_id":17,"capacity":100,"penalty":6},
		{"event":"b","age":0,` + reported + `,` + ids + `,"policy":"burst","policy_for":"tier gold","capacity":2,
			"retry_after":null},
		{"event":"c","age":0,` + reported + `,` + ids + `,"policy":"platform","scope":"global","policy_for":"global",
			"capacity":777,"count":2,"hidden_ids":["` + requestID + `"]},
		{"event":"d","age":0,` + reported + `,"tenant":"globex","request_ids":["of-globex"],"capacity":777}]`)
}

func TestARequestIDLeadsToTheLimitsThatDeniedAndWhatWouldAdmit(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.identified()
	list := read[answers.DenialList](w, w.want(w.by(viewer, "GET", denials+"/"+requestID, ""), http.StatusOK)).Denials
	if len(list) != 3 {
		t.Fatalf("an operator reads %+v", list)
	}
	byRow, byConfig := list[2], list[1]
	if byRow.Org != "acme" || byRow.User != "hmac:1" || byRow.Tier != "gold" || *byRow.PolicyID != 17 ||
		*byRow.PolicyVersion != 31 || *byRow.Remaining != 2 || *byRow.Cost != 3 || byRow.RetryAt.Before(byRow.At.Add(7e9)) {
		t.Errorf("an operator reads %+v of a row", byRow)
	}
	for _, part := range []string{"A retry at 20", "at most 2, which was left", "the end of penalty 6", "by policy 17"} {
		if !strings.Contains(byRow.WouldAdmit, part) {
			t.Errorf("it would be admitted by %q, want %q", byRow.WouldAdmit, part)
		}
	}
	if byConfig.PolicyID != nil || byConfig.PolicyFor != "tier gold" ||
		!strings.Contains(byConfig.WouldAdmit, "at most 2, which is all that the limit holds") {
		t.Errorf("an operator reads %+v of the config", byConfig)
	}
}

func TestAnOrgFindsItsOwnRequestsAndOfSharedLimitsNoNumbers(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.identified()
	a := w.want(w.by(ofAcme, "GET", denials+"/"+requestID, ""), http.StatusOK)
	own := read[answers.DenialList](w, a).Denials
	if len(own) != 2 || *own[1].Remaining != 2 || strings.Contains(a.Body.String(), "penalty") {
		t.Errorf("the org reads %s, want both limits of its own", a.Body)
	}
	a = w.want(w.by(ofAcme, "GET", denials+"/shared-only", ""), http.StatusOK)
	shared := read[answers.DenialList](w, a).Denials[0]
	if shared.Policy != "platform" || shared.Remaining != nil || shared.Capacity != nil || shared.RetryAt != nil ||
		shared.WouldAdmit == "" || strings.Contains(instants.ReplaceAllString(a.Body.String(), ""), "777") {
		t.Errorf("the org reads %s of a shared limit", a.Body)
	}
	for token, id := range map[string]string{ofAcme: "of-globex", ofGlobex: requestID, viewer: "unknown"} {
		a := w.want(w.by(token, "GET", denials+"/"+id, ""), http.StatusNotFound)
		if text := a.Body.String(); !strings.Contains(text, "7 days") || !strings.Contains(text, "denial_request_id") {
			t.Errorf("%s does not say why it may be unknown", text)
		}
	}
	w.want(w.by(viewer, "GET", denials+"/%00", ""), http.StatusUnprocessableEntity)
	w.want(w.by(viewer, "GET", denials+"/"+strings.Repeat("a", 65), ""), http.StatusUnprocessableEntity)
}

func TestDenialsAndNoticesOfALimitInMoneyHaveItsUnit(t *testing.T) {
	t.Parallel()
	w := open(t)
	const money = `"limit":20000000,"capacity":20000000,"cost":20000,"remaining":4200,"unit":"usd"`
	w.reports(`[{"event":"a","age":0,` + reported + `,` + money + `},
		{"event":"b","age":9,` + reported + `,` + money + `,"policy":"platform","scope":"global"}]`)
	own := read[answers.DenialList](w, w.want(w.by(ofAcme, "GET", orgDenials, ""), http.StatusOK)).Denials
	require.Len(t, own, 2)
	if own[0].Unit != "usd" || !strings.Contains(own[0].WouldAdmit, "a cost of at most 0.0042 USD, which was left") ||
		own[1].Unit != "" {
		t.Errorf("the org reads %+v", own)
	}
	_, err := w.pool.Exec(w.Context(), `INSERT INTO rate_limiter.quota_notices (tenant, policy, endpoint, window_start,
			threshold, window_end, "limit", used, unit, late, noticed_at)
		SELECT 'acme', policy, '', now(), 50, now() + interval '1 day', 20000000, 10000000, unit, false, now()
		FROM (VALUES ('llm-month', 'usd'), ('requests', '')) v (policy, unit)`)
	require.NoError(t, err)
	text := w.want(w.as("GET", "/v1/ratelimit/usage/notices", ""), http.StatusOK).Body.String()
	if strings.Count(text, `"unit":"usd"`) != 1 {
		t.Errorf("the notices are %s, want the unit of one", text)
	}
}

func TestDenialsAreGroupedWithTheirTrendAndWithoutAdvice(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.denied()
	w.reports(`[{"event":"f","age":3000000000,` + reported + `,"count":5},{"event":"g","age":0,` + reported +
		`,"endpoint":"GET /a"},{"event":"h","age":0,` + reported + `,"count":70}]`)
	pgtest.Exec(w, w.pool, `UPDATE rate_limiter.recent_denials SET at = at - interval '25 hours' WHERE event = 'h'`)
	const path = "/v1/ratelimit/denial-groups?tenant=acme"
	found := read[answers.DenialGroups](w, w.want(w.by(viewer, "GET", path, ""), http.StatusOK))
	require.Len(t, found.Items, 5) // not those of globex
	require.EqualValues(t, 900, found.Step)
	for i, want := range []string{"daily POST /records 6", "platform POST /records 5"} {
		g := found.Items[i]
		require.Equal(t, want, fmt.Sprint(g.Policy, " ", g.Endpoint, " ", g.Count))
		var sum int64
		for _, n := range g.Counts {
			sum += n
		}
		if len(g.Counts) != 96 || sum != g.Count || g.WouldAdmit != "" || g.User != "" || *g.Limit != 100 {
			t.Errorf("the group is %+v", g)
		}
	}
	if first := found.Items[0].Counts; first[95] == 6 || first[92]+first[91] != 5 {
		t.Errorf("the trend is %v, want 5 of 50 minutes ago", first)
	}
	week := read[answers.DenialGroups](w, w.want(w.by(viewer, "GET", path+"&last=7d&policy=daily&limit=1", ""),
		http.StatusOK))
	if len(week.Items) != 1 || week.Items[0].Count != 76 || len(week.Items[0].Counts) != 28 {
		t.Errorf("in a week there are %+v", week)
	}
	w.want(w.by(viewer, "GET", path+"&last=100000d", ""), http.StatusOK)
	w.wantFaults(w.by(viewer, "GET", path+"&last=0s", ""), "query.last")

	a := w.want(w.by(ofAcme, "GET", "/v1/orgs/acme/ratelimit/denial-groups", ""), http.StatusOK)
	own := read[answers.DenialGroups](w, a)
	if len(own.Items) != 4 || strings.Contains(a.Body.String(), "hidden") || strings.Contains(a.Body.String(), "hmac") {
		t.Fatalf("the org reads %s", a.Body)
	}
	for _, g := range own.Items {
		if g.Policy == "platform" && (g.Limit != nil || g.Count != 2) {
			t.Errorf("the org reads %+v of a shared limit", g)
		}
	}
	w.want(w.by(ofGlobex, "GET", "/v1/orgs/acme/ratelimit/denial-groups", ""), http.StatusForbidden)
	w.want(w.by(ofAcme, "GET", path, ""), http.StatusForbidden)
}
