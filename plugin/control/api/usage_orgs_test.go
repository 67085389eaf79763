package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

func TestTheUsageOfAllOrgsIsSummedUpByStep(t *testing.T) {
	t.Parallel()
	w := withRanking(t)
	for query, step := range map[string]string{
		"?last=1h": "1m", "": "1h", "?last=7d": "1d", "?from=" + midnight(-30): "1d",
	} {
		got := read[rows.UsageHistory](w, w.want(w.as("GET", "/v1/ratelimit/usage/history"+query, ""), http.StatusOK))
		require.Len(t, got.Items, 1, query)
		assert.Equal(t, step, got.Step, query)
		assert.EqualValues(t, []int64{61, 13}, []int64{got.Items[0].Admitted, got.Items[0].Denied}, query)
	}
	w.wantFaults(w.as("GET", "/v1/ratelimit/usage/history?last=1h&from="+midnight(0), ""), "query.last")
}

func TestOrgsAreListedWithTheirTierUsageNearestLimitAndOverrides(t *testing.T) {
	t.Parallel()
	w := nearing(t)
	_, err := w.pool.Exec(t.Context(), `INSERT INTO rate_limiter.tenants (id, tier) VALUES ('acme', 'enterprise'), ('idle', 'gold');
		INSERT INTO rate_limiter.overrides (kind, tenant, policy, factor, reason, permanent, author)
		VALUES ('multiplier', 'globex', 'daily', 2000, 'a reason', true, 'ann'),
			('multiplier', 'globex', '', 2000, 'r', true, 'a');
		UPDATE rate_limiter.usage_minutes SET denied = 4 WHERE tenant = (SELECT id FROM rate_limiter.usage_names
			WHERE name = 'globex');
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT date_trunc('minute', now()), t.id, p.id, p.id, 7, 0, CASE WHEN t.name = 'globex' THEN 3 ELSE 0 END, 0, 0
		FROM rate_limiter.usage_names t, rate_limiter.usage_names p WHERE t.name IN ('acme', 'globex') AND p.name = ''`)
	require.NoError(t, err)
	const (
		acme   = "acme enterprise by row: 7+0, 0 overrides, near daily 1"
		globex = "globex essentials by assumed: 7+3, 2 overrides, near daily 0.1"
		idle   = "idle gold by row: 0+0, 0 overrides"
		banned = "banned essentials by assumed: 0+0, 0 overrides"
		exempt = "exempt essentials by assumed: 0+0, 0 overrides"
		cmd    = `=cmd,"b" essentials by assumed: 0+0, 0 overrides, near daily 0.8`
	)
	for query, want := range map[string][]string{
		"?sort=org_id":                   {cmd, acme, banned, exempt, globex, idle},
		"?sort=org_id&reverse=true":      {idle, globex, exempt, banned, acme, cmd},
		"?sort=denied&limit=1":           {globex},
		"?sort=nearest&limit=2":          {acme, cmd},
		"?sort=overrides&limit=1":        {globex},
		"?tier=enterprise":               {acme},
		"?prefix=gl":                     {globex},
		"?sort=admitted&limit=2&last=7d": {acme, globex},
	} {
		got := read[answers.OrgUsages](w, w.want(w.as("GET", "/v1/ratelimit/usage/orgs"+query, ""), http.StatusOK))
		var list []string
		for _, o := range got.Items {
			text := fmt.Sprintf("%s %s by %s: %d+%d, %d overrides", o.Org, o.Tier, o.Source, o.Admitted, o.Denied, o.Overrides)
			if o.Nearest != nil {
				text += fmt.Sprintf(", near %s %v", o.Nearest.Policy, o.Nearest.Fraction)
			}
			list = append(list, text)
		}
		assert.Equal(t, strings.Join(want, "\n"), strings.Join(list, "\n"), query)
		assert.GreaterOrEqual(t, got.Count, len(got.Items))
	}
	w.wantFaults(w.as("GET", "/v1/ratelimit/usage/orgs?last=week&limit=0", ""), "query.last query.limit")
}
