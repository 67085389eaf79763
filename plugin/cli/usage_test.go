package cli

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// onDatabase returns a terminal on a database with some rows.
func onDatabase(t *testing.T, inserts string) *terminal {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), inserts)
	require.NoError(t, err)
	return &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
}

// usedHours are four hours until noon in which acme has used one endpoint.
const usedHours = `
	CREATE TABLE rate_limiter.usage_hours_2099 PARTITION OF rate_limiter.usage_hours
		FOR VALUES FROM ('2098-12-01 00:00:00+00') TO ('2100-01-01 00:00:00+00');
	INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('GET /a'), ('daily');
	INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
		remaining_min)
	SELECT hours, t.id, e.id, p.id, 10 * extract(hour FROM hours AT TIME ZONE 'UTC') - 70, 2, 1, 0,
		CASE WHEN p.name = '' THEN 0 ELSE 30 END, CASE WHEN p.name = '' THEN NULL ELSE 70 END
	FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p,
		generate_series(timestamptz '2099-01-01 08:00:00+00', timestamptz '2099-01-01 11:00:00+00', '1 hour') hours
	WHERE t.name = 'acme' AND e.name = 'GET /a' AND p.name IN ('', 'daily')`

func TestUsageShowListsTheStepsOfATenant(t *testing.T) {
	x := onDatabase(t, usedHours)
	got := x.must("usage", "show", "acme", "--last", "6h")
	require.Contains(t, got, `
items:
AT                    ADMITTED  SOFT  DENIED  SHADOW DENIED  LATE
2099-01-01T08:00:00Z  10        2     1       0              0
2099-01-01T09:00:00Z  20        2     1       0              0
2099-01-01T10:00:00Z  30        2     1       0              0
2099-01-01T11:00:00Z  40        2     1       0              0
`)
	got = x.must("usage", "show", "acme", "--by", "endpoint,policy", "--step", "1d", "--endpoint", "GET /a")
	require.Contains(t, got, "GET /a    daily   100       8     4       0              0     120   70\n")
	var found rows.UsageHistory
	require.NoError(t, json.Unmarshal([]byte(x.must("usage", "show", "acme", "--policy", "daily", "-o", "json")), &found))
	if len(found.Items) != 4 || *found.Items[0].Cost != 30 || found.Step != "1h" || !found.To.Equal(noon) {
		t.Errorf("the document is %+v", found)
	}
	x.reports(map[string]string{
		"usage show globex":                                     "items         -",
		"usage show acme --step 5m":                             `--step: "5m": must be 1m`,
		"usage show acme --by tenant":                           `--by: "tenant": must be`,
		"usage show acme --step 1m --last 30d":                  "more than 1500 steps apart",
		"usage show acme --last -1h":                            "must be a duration above 0",
		"usage show acme --period current":                      "name the policy by --policy",
		"usage show acme --policy daily --period next":          `--period: "next": must be`,
		"usage show acme --policy daily --period current":       "--config is required",
		"usage show acme --policy a --period current --last 1h": "takes the place of --last",
		"usage show":                                "expected TENANT",
		"usage top --last 1h":                       "items  -",
		"usage top --by soft":                       "must be one of admitted",
		"usage top --last 1h --from 2h":             "--last: takes the place of",
		"usage top --from 1h --to 2h":               "from: must be before to",
		"usage top --limit 2000":                    "--limit: expected",
		"usage top --limit 0":                       "must be a whole number above",
		"usage notices --limit 0":                   "must be a whole number above 0",
		"usage notices --last -1h":                  "--last: ",
		"usage notices acme globex":                 "unexpected argument",
		"top --every 10ms":                          "--every must be at least 1s",
		"top --every never":                         "must be a duration above 0",
		"top --by tenant":                           "must be",
		"top --limit 0":                             "above 0",
		"top --last -1h":                            "--last: must be a time such as",
		"top edge-1:9542":                           "unexpected argument",
		"top --limit 100000":                        "--limit: ",
		"usage export":                              "--month: must be given",
		"usage export --month 2026-13":              "must be a month such as",
		"usage export --month 2026-1":               "--month: ",
		"usage export --month 2026-11 --format xml": `--format: "xml": must be`,
		"usage export --period current":             "--period needs --policy",
		"usage export --month 2026-11 --by tenant":  `--by: "tenant": must be`,

		"usage export --month 2026-11 --by policy --policy daily": "use either --policy or",
		"usage export acme --month 2026-11":                       `unexpected argument "acme"`,
	})
}

// reports calls the program, and wants texts in what it writes.
func (x *terminal) reports(calls map[string]string) {
	x.t.Helper()
	for call, want := range calls {
		x.output.Reset()
		if x.call(strings.Fields(call)...); !strings.Contains(x.output.String(), want) {
			x.t.Errorf("ratelimit %s: %s, want %q", call, x.output.String(), want)
		}
	}
}

func TestTheStepOfAUsageHistoryFollowsFromItsLength(t *testing.T) {
	for last, want := range map[time.Duration]string{
		time.Hour: "1m", 2 * time.Hour: "1m", 3 * time.Hour: "1h", 14 * 24 * time.Hour: "1h", 15 * 24 * time.Hour: "1d",
	} {
		if step, err := stepOf("", last); err != nil || step.Name != want {
			t.Errorf("%v: %v (%v), want %s", last, step.Name, err, want)
		}
	}
}

// nearLimits are limits that left tenants little, at the time of the database. acme has a tier and a policy of its own,
// globex an override, and one tenant is banned.
const nearLimits = `
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
		AND (v.policy <> 'daily' OR p.name LIKE CASE v.tenant WHEN 'acme' THEN '%/gold' ELSE '%/basic' END)`

// onNearLimits returns a terminal on a database with nearLimits, and the config of its tiers.
func onNearLimits(t *testing.T) (x *terminal, deck string) {
	t.Helper()
	deck = filepath.Join(t.TempDir(), "kong.yml")
	err := os.WriteFile(deck, []byte(`_format_version: "3.0"
plugins:
- name: tenant-rate-limiting
  config:
    default_tier: basic
    tiers:
    - {name: basic, limits: [{name: daily, scope: tenant, limit: 10, window_size: 86400}]}
    - {name: gold, limits: [{name: daily, scope: tenant, limit: 1000, window_size: 86400}]}
`), 0o600)
	require.NoError(t, err)
	return onDatabase(t, nearLimits), deck
}

func TestUsageNearLimitListsTenantsByTheLimitsInForce(t *testing.T) {
	x, deck := onNearLimits(t)
	call := []string{"usage", "near-limit", "--config", deck}
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
		var got []answers.NearLimit
		require.NoError(t, json.Unmarshal([]byte(x.must(slices.Concat(call, []string{"-o", "json"}, c.args)...)), &got))
		require.Len(t, got, len(c.want))
		for i, w := range c.want {
			g := got[i]
			if g.Org != w.Org || g.Policy != w.Policy || g.Limit != w.Limit || g.Remaining != w.Remaining ||
				g.Fraction != w.Fraction {
				t.Errorf("%q: limit %d is %+v, want %+v", c.args, i, g, w)
			}
		}
	}
	if got := x.must(append(call, "--limit", "1")...); !strings.Contains(got, "acme    hourly  1 ") {
		t.Errorf("the table is\n%s", got)
	}
	for flag, values := range map[string][]string{
		"--last": {"25h"}, "--limit": {"0"}, "--config": {""}, "--above": {"80", "80%", "NaN", "-0.1", "1.1"},
	} {
		for _, value := range values {
			x.output.Reset()
			if code := x.call(append(call, flag, value)...); code != 2 || !strings.Contains(x.output.String(), flag) {
				t.Errorf("%s %s: exit code %d and %s", flag, value, code, x.output.String())
			}
		}
	}
}

func TestUsageShowCoversThePeriodOfATenant(t *testing.T) {
	x := onDatabase(t, usedHours+`; UPDATE rate_limiter.usage_state SET hours_until = '2099-01-01 12:00:00+00'`)
	deck := filepath.Join(t.TempDir(), "kong.yml")
	require.NoError(t, os.WriteFile(deck, []byte(`_format_version: "3.0"
plugins:
- name: tenant-rate-limiting
  config:
    default_tier: basic
    tiers:
    - name: basic
      limits:
      - {name: daily, scope: tenant, limit: 10, algorithm: fixed_window, period: month, time_zone: Europe/Berlin}
`), 0o600))
	call := []string{"usage", "show", "acme", "--policy", "daily", "--config", deck, "--period"}
	got := x.must(append(call, "current")...)
	require.Contains(t, got, `from          2098-12-31T23:00:00Z
to            2099-01-31T23:00:00Z
step          period
period        month
time zone     Europe/Berlin
`)
	require.Contains(t, got, "2098-12-31T23:00:00Z  daily   100       8     4       0              0     120   70\n")
	require.Contains(t, x.must(append(call, "previous")...), "items         -")
	got = x.must("usage", "export", "--policy", "daily", "--period", "current", "--config", deck)
	require.Equal(t, strings.TrimSuffix(exportHead, "\n")+`,"period","time_zone","from","to","inexact"
"2099-01-01","acme","GET /a","daily","100","8","4","0","0","120","false","","","","month","Europe/Berlin",`+
		`"2098-12-31T23:00:00Z","2099-01-31T23:00:00Z",""`+"\n", got)
}

// quotaNotices are three notices, one of them older than a day at noon.
const quotaNotices = `
	INSERT INTO rate_limiter.quota_notices (tenant, policy, endpoint, window_start, threshold, window_end, "limit", used,
		exhausted_at, late, noticed_at)
	VALUES ('acme', 'daily', '', '2098-12-31Z', 50, '2099-01-01Z', 100, 55, NULL, true, '2098-12-31 11:00Z'),
		('acme', 'daily', '', '2099-01-01Z', 80, '2099-01-02Z', 100, 85, '2099-01-01 14:20Z', false, '2099-01-01 11:00Z'),
		(E'=cmd,"b"\n', 'daily', 'POST /a', '2099-01-01Z', 100, '2099-01-02Z', 9, 9, NULL, true, '2099-01-01 10:00Z')`

func TestUsageNoticesListsTheLastNoticesFirst(t *testing.T) {
	x := onDatabase(t, quotaNotices)
	for _, c := range []struct {
		args []string
		want []int64
	}{
		{nil, []int64{80, 100}},
		{[]string{"acme", "--last", "30d"}, []int64{80, 50}},
		{[]string{"--limit", "1"}, []int64{80}},
	} {
		var found []rows.QuotaNotice
		got := x.must(append([]string{"usage", "notices", "-o", "json"}, c.args...)...)
		require.NoError(t, json.Unmarshal([]byte(got), &found))
		var thresholds []int64
		for _, n := range found {
			thresholds = append(thresholds, n.Threshold)
		}
		require.Equal(t, c.want, thresholds)
	}
	require.Contains(t, x.must("usage", "notices", "acme"), "2099-01-01T11:00:00Z  acme    daily   80         100    85  ")
}

// hostileTenant has what a CSV and a spreadsheet could take for something else.
const hostileTenant = "=cmd,\"b\"\n@x;+1"

// usedDays are two days of December 2098 on which a tenant has used an endpoint. The first of them is closed.
var usedDays = `
	CREATE TABLE rate_limiter.usage_days_2098 PARTITION OF rate_limiter.usage_days
		FOR VALUES FROM ('2098-01-01 00:00:00+00') TO ('2099-01-01 00:00:00+00');
	CREATE TABLE rate_limiter.usage_hours_2098 PARTITION OF rate_limiter.usage_hours
		FOR VALUES FROM ('2098-01-01 00:00:00+00') TO ('2099-01-01 00:00:00+00');
	UPDATE rate_limiter.usage_state SET hours_until = '2098-12-31 12:00:00+00', days_until = '2098-12-31 00:00:00+00';
	INSERT INTO rate_limiter.usage_names (name)
	VALUES (''), (E'` + strings.ReplaceAll(hostileTenant, "\n", `\n`) + `'), ('GET /a'), ('daily/default/pro');
	INSERT INTO rate_limiter.usage_days (at, tenant, endpoint, policy, late, admitted, soft, denied, shadow_denied, cost)
	SELECT '2098-12-30 00:00:00+00', t.id, e.id, p.id, false, 10, 2, 1, 0, CASE p.name WHEN '' THEN 0 ELSE -5 END
	FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
	WHERE t.name LIKE '=%' AND e.name = 'GET /a' AND p.name IN ('', 'daily/default/pro');
	INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
	SELECT '2098-12-31 03:00:00+00', t.id, e.id, p.id, 7, 0, 0, 0, 0
	FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
	WHERE t.name LIKE '=%' AND e.name = 'GET /a' AND p.name = '';
	UPDATE rate_limiter.usage_names SET unit = 'usd' WHERE name = 'daily/default/pro';
	INSERT INTO rate_limiter.usage_models (day, tenant, model, calls, prompt_tokens, completion_tokens, micro_usd)
	SELECT d, id, m, 2, 1000, 170, 4200 FROM rate_limiter.usage_names,
		(VALUES (date '2098-12-30', '=gpt'), ('2098-12-30', 'gpt-4o'), ('2098-12-31', 'gpt-4o')) v (d, m)
	WHERE name LIKE '=%'`

const exportHead = `"day","org_id","endpoint","policy","admitted","soft","denied","shadow_denied",` +
	`"late","cost","closed","policy_id","tier","cost_usd"` + "\n"

func TestUsageExportWritesDaysAsTheyAreClosed(t *testing.T) {
	x := onDatabase(t, usedDays)
	got := x.must("usage", "export", "--month", "2098-12")
	want := exportHead + `"2098-12-30","'=cmd,""b""'` + "\n" +
		`'@x;'+1","GET /a","","10","2","1","0","0","","true","","",""` + "\n" +
		"ratelimit usage export: the days from 2098-12-31 until 2098-12-31 are not closed, and left out: add --open to " +
		"write them\n"
	require.Equal(t, want, got)
	_, err := csv.NewReader(strings.NewReader(got[:strings.Index(got, "ratelimit")])).ReadAll()
	require.NoError(t, err)
	got = x.must("usage", "export", "--month", "2098-12", "--by", "policy", "--open")
	for _, want := range []string{
		`"GET /a","","10","2","1","0","0","","true","","",""`,
		`"GET /a","daily","10","2","1","0","0","-5","true","","pro","-0.000005"`,
		`"2098-12-31","'=cmd`, `"GET /a","","7","0","0","0","0","","false"`, "closed=false",
	} {
		require.Contains(t, got, want)
	}
	got = x.must("usage", "export", "--month", "2098-12", "--by", "model")
	want = `"day","org_id","model","calls","prompt_tokens","completion_tokens","usd","closed"` + "\n" +
		`"2098-12-30","'=cmd,""b""'` + "\n" + `'@x;'+1","'=gpt","2","1000","170","0.0042","true"` + "\n" +
		`"2098-12-30","'=cmd,""b""'` + "\n" + `'@x;'+1","gpt-4o","2","1000","170","0.0042","true"` + "\n" +
		"ratelimit usage export: the days from 2098-12-31 until"
	require.True(t, strings.HasPrefix(got, want), got)
	require.Contains(t, x.must("usage", "show", hostileTenant, "--by", "model", "--last", "30d"), `
models:
DAY         ORG ID          MODEL   CALLS  PROMPT TOKENS  COMPLETION TOKENS  USD     CLOSED
2098-12-30  =cmd,"b" @x;+1  =gpt    2      1000           170                0.0042  yes
`)
	if got = x.must("usage", "export", "--month", "2099-01", "--policy", "daily"); !strings.HasPrefix(got, exportHead+
		"ratelimit usage export: the days from 2099-01-01 until 2099-01-31 are not closed") {
		t.Errorf("a month without closed days is\n%s", got)
	}
	got = x.must("usage", "export", "--month", "2098-12", "--format", "json", "--policy", "daily")
	document, _, _ := strings.Cut(got, "ratelimit usage export:")
	var list []rows.UsageExportRow
	if err := json.Unmarshal([]byte(document), &list); err != nil || len(list) != 1 ||
		list[0].Tenant != hostileTenant || *list[0].Cost != -5 || !list[0].Closed {
		t.Errorf("the document is %s (%v)", got, err)
	}
}

func TestUsageTopRanksTenants(t *testing.T) {
	x := onDatabase(t, usedDays)
	x.shows(`by    admitted
from  2098-12-25T00:00:00Z
to    2099-01-02T00:00:00Z
step  1d

items:
ORG ID          ADMITTED  SOFT  DENIED  SHADOW DENIED  LATE  COST
=cmd,"b" @x;+1  17        2     1       0              0     -5
`, "usage", "top", "--last", "7d")
	var top rows.UsageTop
	got := x.must("usage", "top", "--by", "denied", "--from", "2098-12-30T00:00:00Z", "--to", "2098-12-31T00:00:00Z",
		"-o", "json")
	if err := json.Unmarshal([]byte(got), &top); err != nil || len(top.Items) != 0 || top.Step != "1h" {
		t.Errorf("the document is %s (%v)", got, err)
	}
}
