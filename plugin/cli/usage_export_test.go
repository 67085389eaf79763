package cli

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// hostileTenant has what a CSV and a spreadsheet could take for something else.
const hostileTenant = "=cmd,\"b\"\n@x;+1"

// callOnDays calls ratelimit on a database in which a tenant has used an endpoint on two days of December 2098. The
// first of them is closed.
func callOnDays(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), `
		CREATE TABLE rate_limiter.usage_days_2098 PARTITION OF rate_limiter.usage_days
			FOR VALUES FROM ('2098-01-01 00:00:00+00') TO ('2099-01-01 00:00:00+00');
		CREATE TABLE rate_limiter.usage_hours_2098 PARTITION OF rate_limiter.usage_hours
			FOR VALUES FROM ('2098-01-01 00:00:00+00') TO ('2099-01-01 00:00:00+00');
		UPDATE rate_limiter.usage_state SET hours_until = '2098-12-31 12:00:00+00', days_until = '2098-12-31 00:00:00+00';
		INSERT INTO rate_limiter.usage_names (name)
		VALUES (''), (E'`+strings.ReplaceAll(hostileTenant, "\n", `\n`)+`'), ('GET /a'), ('daily/default/pro');
		INSERT INTO rate_limiter.usage_days (at, tenant, endpoint, policy, late, admitted, soft, denied, shadow_denied, cost)
		SELECT '2098-12-30 00:00:00+00', t.id, e.id, p.id, false, 10, 2, 1, 0, CASE p.name WHEN '' THEN 0 ELSE -5 END
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name LIKE '=%' AND e.name = 'GET /a' AND p.name IN ('', 'daily/default/pro');
		INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost)
		SELECT '2098-12-31 03:00:00+00', t.id, e.id, p.id, 7, 0, 0, 0, 0
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p
		WHERE t.name LIKE '=%' AND e.name = 'GET /a' AND p.name = ''`)
	require.NoError(t, err)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	code = x.call(append([]string{"usage"}, args...)...)
	return code, x.output.String()
}

const exportHead = `"day","org_id","endpoint","policy","admitted","soft","denied","shadow_denied",` +
	`"late","cost","closed","policy_id","tier"` + "\n"

func TestUsageExportWritesClosedDaysAsCSVAndNamesTheOpenOnes(t *testing.T) {
	code, got := callOnDays(t, "export", "--month", "2098-12")
	want := exportHead + `"2098-12-30","'=cmd,""b""'` + "\n" +
		`'@x;'+1","GET /a","","10","2","1","0","0","","true","",""` + "\n" +
		"ratelimit usage export: the days from 2098-12-31 until 2098-12-31 are not closed, and left out: add --open to " +
		"write them\n"
	if code != 0 || got != want {
		t.Errorf("exit code %d and\n%swant\n%s", code, got, want)
	}
	if _, err := csv.NewReader(strings.NewReader(got[:strings.Index(got, "ratelimit")])).ReadAll(); err != nil {
		t.Error(err)
	}
}

func TestUsageExportWritesOpenDaysAndPoliciesIfItShould(t *testing.T) {
	_, got := callOnDays(t, "export", "--month", "2098-12", "--by", "policy", "--open")
	for _, want := range []string{
		`"GET /a","","10","2","1","0","0","","true","",""`,
		`"GET /a","daily","10","2","1","0","0","-5","true","","pro"`,
		`"2098-12-31","'=cmd`, `"GET /a","","7","0","0","0","0","","false"`, "closed=false",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s in\n%s", want, got)
		}
	}
	if _, got = callOnDays(t, "export", "--month", "2099-01", "--policy", "daily"); !strings.HasPrefix(got, exportHead+
		"ratelimit usage export: the days from 2099-01-01 until 2099-01-31 are not closed") {
		t.Errorf("a month without closed days is\n%s", got)
	}
}

func TestUsageExportWritesJSONWithTheNamesAsTheyAre(t *testing.T) {
	_, got := callOnDays(t, "export", "--month", "2098-12", "--format", "json", "--policy", "daily")
	document, _, _ := strings.Cut(got, "ratelimit usage export:")
	var list []rows.UsageExportRow
	if err := json.Unmarshal([]byte(document), &list); err != nil || len(list) != 1 ||
		list[0].Tenant != hostileTenant || *list[0].Cost != -5 || !list[0].Closed {
		t.Errorf("the document is %s (%v)", got, err)
	}
}

func TestUsageExportReportsWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"--month: must be given":     {},
		"must be a month such as":    {"--month", "2026-13"},
		`--format: "xml": must be`:   {"--month", "2026-11", "--format", "xml"},
		`--by: "tenant": must be`:    {"--month", "2026-11", "--by", "tenant"},
		"use either --policy or":     {"--month", "2026-11", "--by", "policy", "--policy", "daily"},
		`unexpected argument "acme"`: {"acme", "--month", "2026-11"},
	} {
		x := &terminal{t: t}
		if code := x.call(append([]string{"usage", "export"}, args...)...); code != exitWrongCall ||
			!strings.Contains(x.output.String(), want) {
			t.Errorf("%v: exit code %d and %s, want %q", args, code, x.output.String(), want)
		}
	}
}

func TestUsageTopRanksTenants(t *testing.T) {
	code, got := callOnDays(t, "top", "--last", "7d")
	want := `most admitted from 2098-12-25T00:00:00Z to 2099-01-02T00:00:00Z

TENANT          ADMITTED  SOFT  DENIED  SHADOW DENIED  COST  LATE
=cmd,"b" @x;+1  17        2     1       0              -5    0
`
	if code != 0 || got != want {
		t.Errorf("exit code %d and\n%swant\n%s", code, got, want)
	}
	code, got = callOnDays(t, "top", "--by", "denied", "--from", "2098-12-30T00:00:00Z", "--to", "2098-12-31T00:00:00Z",
		"-o", "json")
	var top rows.UsageTop
	if err := json.Unmarshal([]byte(got), &top); err != nil || code != 0 || len(top.Items) != 0 || top.Step != "1h" {
		t.Errorf("exit code %d and %s (%v)", code, got, err)
	}
}

func TestUsageTopReportsWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"no usage from":                {"--last", "1h"},
		"must be one of admitted":      {"--by", "soft"},
		"--last: takes the place of":   {"--last", "1h", "--from", "2h"},
		"from: must be before to":      {"--from", "1h", "--to", "2h"},
		"--limit: expected":            {"--limit", "2000"},
		"must be a whole number above": {"--limit", "0"},
	} {
		if _, got := callOnDays(t, append([]string{"top"}, args...)...); !strings.Contains(got, want) {
			t.Errorf("%v: %s, want %q", args, got, want)
		}
	}
}
