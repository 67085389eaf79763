package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

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
		nearLimit + "?above=-0.1&limit=0":                               "query.above query.limit",
	} {
		a := w.want(w.as("GET", query, ""), http.StatusUnprocessableEntity)
		if got := read[problem](w, a).paths(); got != path {
			t.Errorf("%s: faults at %s, want %s", query, got, path)
		}
	}
}
