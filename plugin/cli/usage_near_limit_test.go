package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// callNearLimit calls ratelimit usage near-limit on a database in which limits left tenants little, at the time of the
// database. acme has a tier and a policy of its own, globex an override, and one tenant is banned.
func callNearLimit(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), `
		SELECT rate_limiter.keep_usage_partitions();
		SELECT set_config('rate_limiter.reason', 'a test', false);
		INSERT INTO rate_limiter.tenants (id, tier) VALUES ('acme', 'gold');
		INSERT INTO rate_limiter.policies (name, tenant, scope, "limit", window_size)
		VALUES ('hourly', 'acme', 'tenant', 500, 3600);
		INSERT INTO rate_limiter.overrides (kind, tenant, policy, "limit", reason, author, permanent)
		VALUES ('custom_limit', 'globex', 'daily', 20, 'r', 'a', true), ('ban', 'banned', '', NULL, 'r', 'a', true);
		INSERT INTO rate_limiter.usage_names (name)
		VALUES (''), ('acme'), ('globex'), ('banned'), ('daily/default/basic'), ('daily/default/gold');
		INSERT INTO rate_limiter.usage_names (name) SELECT 'hourly/#' || id FROM rate_limiter.policies;
		INSERT INTO rate_limiter.usage_minutes (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT date_trunc('minute', now()), t.id, e.id, p.id, 1, 0, 0, 0, 0, remaining
		FROM (VALUES ('acme', 'daily', 100), ('acme', 'hourly', 0), ('globex', 'daily', 3), ('banned', 'daily', 0)
			) v (tenant, policy, remaining)
		JOIN rate_limiter.usage_names t ON t.name = v.tenant JOIN rate_limiter.usage_names e ON e.name = ''
		JOIN rate_limiter.usage_names p ON split_part(p.name, '/', 1) = v.policy
			AND (v.policy <> 'daily' OR p.name LIKE CASE v.tenant WHEN 'acme' THEN '%/gold' ELSE '%/basic' END)`)
	require.NoError(t, err)
	deck := filepath.Join(t.TempDir(), "kong.yml")
	err = os.WriteFile(deck, []byte(`_format_version: "3.0"
plugins:
- name: tenant-rate-limiting
  config:
    default_tier: basic
    tiers:
    - {name: basic, limits: [{name: daily, scope: tenant, limit: 10, window_size: 86400}]}
    - {name: gold, limits: [{name: daily, scope: tenant, limit: 1000, window_size: 86400}]}
`), 0o600)
	require.NoError(t, err)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	command := []string{"usage", "near-limit"}
	if len(args) > 0 && args[0] == "top" {
		command, args = args[:1], args[1:]
	}
	code = x.call(append(append(command, "--config", deck, "-o", "json"), args...)...)
	return code, x.output.String()
}

func TestUsageNearLimitListsTenantsByTheLimitsInForce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []answers.NearLimit
	}{
		{nil, []answers.NearLimit{
			{Org: "acme", Policy: "hourly", Limit: 500, Remaining: 0, Fraction: 1},
			{Org: "acme", Policy: "daily", Limit: 1000, Remaining: 100, Fraction: 0.9},
			{Org: "globex", Policy: "daily", Limit: 20, Remaining: 3, Fraction: 0.85},
		}},
		{[]string{"--above", "0.86", "--limit", "1"}, []answers.NearLimit{
			{Org: "acme", Policy: "hourly", Limit: 500, Remaining: 0, Fraction: 1},
		}},
	} {
		code, output := callNearLimit(t, c.args...)
		var got []answers.NearLimit
		if err := json.Unmarshal([]byte(output), &got); err != nil || code != 0 || len(got) != len(c.want) {
			t.Errorf("%q: exit code %d and %s (%v)", c.args, code, output, err)
			continue
		}
		for i, w := range c.want {
			g := got[i]
			if g.Org != w.Org || g.Policy != w.Policy || g.Limit != w.Limit || g.Remaining != w.Remaining ||
				g.Fraction != w.Fraction {
				t.Errorf("%q: limit %d is %+v, want %+v", c.args, i, g, w)
			}
		}
	}
}

func TestUsageNearLimitWritesATable(t *testing.T) {
	code, got := callNearLimit(t, "-o", "table", "--limit", "1")
	head, row, _ := strings.Cut(got, "\n")
	const want = "TENANT  POLICY             ENDPOINT  SCOPE   MODE     USED     LEAST LEFT  LIMIT  LAST USED"
	if code != 0 || head != want ||
		!strings.HasPrefix(row, "acme    hourly (policy 1)  -         tenant  enforce  100.0 %  0           500    20") {
		t.Errorf("exit code %d and\n%s", code, got)
	}
}

func TestUsageNearLimitReportsWhatIsWrong(t *testing.T) {
	for _, args := range [][]string{{"--last", "25h"}, {"--limit", "0"}, {"--config", ""}} {
		if code, output := callNearLimit(t, args...); code != 2 {
			t.Errorf("%q: exit code %d and %s", args, code, output)
		}
	}
	for _, above := range []string{"80", "80%", "NaN", "-0.1", "1.1"} {
		code, output := callNearLimit(t, "--above", above)
		if code != 2 || !strings.Contains(output, "--above: ") {
			t.Errorf("--above %s: exit code %d and %s", above, code, output)
		}
	}
}
