package api_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const acmeHistory = acmePath + "/ratelimit/usage/history"

// withHistory returns a world in which acme has used two endpoints in the last minute, and one policy.
func withHistory(t *testing.T) *world {
	t.Helper()
	w := open(t)
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
		a := w.want(w.as("GET", acmeHistory+query, ""), http.StatusUnprocessableEntity)
		if got := read[problem](w, a).paths(); got != path {
			t.Errorf("%s: faults at %s, want %s", query, got, path)
		}
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
	a := w.want(w.as("GET", acmeUsage+"?step=1h&user=u_42&tier=gold", ""), http.StatusUnprocessableEntity)
	if got := read[problem](w, a).paths(); got != "query.tier query.user" {
		t.Errorf("a history of a user has faults at %s", got)
	}
	w.want(w.as("GET", acmeUsage, ""), http.StatusServiceUnavailable) // its buckets: there is no plugin config
}

// withoutTimes returns a text without the begin and the end that follow from the time of the request.
func withoutTimes(text string) string {
	return regexp.MustCompile(`"(from|to|instance)":"[^"]*"`).ReplaceAllString(text, "")
}
