package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// showUsage calls ratelimit usage show on a database in which acme has used one endpoint in four hours until noon.
func showUsage(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), `
		CREATE TABLE rate_limiter.usage_hours_2099 PARTITION OF rate_limiter.usage_hours
			FOR VALUES FROM ('2098-12-01 00:00:00+00') TO ('2100-01-01 00:00:00+00');
		INSERT INTO rate_limiter.usage_names (name) VALUES (''), ('acme'), ('GET /a'), ('daily');
		INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT hours, t.id, e.id, p.id, 10 * extract(hour FROM hours AT TIME ZONE 'UTC') - 70, 2, 1, 0,
			CASE WHEN p.name = '' THEN 0 ELSE 30 END, CASE WHEN p.name = '' THEN NULL ELSE 70 END
		FROM rate_limiter.usage_names t, rate_limiter.usage_names e, rate_limiter.usage_names p,
			generate_series(timestamptz '2099-01-01 08:00:00+00', timestamptz '2099-01-01 11:00:00+00', '1 hour') hours
		WHERE t.name = 'acme' AND e.name = 'GET /a' AND p.name IN ('', 'daily')`)
	require.NoError(t, err)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	code = x.call(append([]string{"usage", "show"}, args...)...)
	return code, x.output.String()
}

func TestUsageShowListsTheStepsOfATenant(t *testing.T) {
	code, got := showUsage(t, "acme", "--last", "6h")
	want := `requests per 1h from 2099-01-01T06:00:00Z to 2099-01-01T12:00:00Z
  ▂▄▆█

AT                    ADMITTED  SOFT  DENIED  SHADOW DENIED
2099-01-01T08:00:00Z  10        2     1       0
2099-01-01T09:00:00Z  20        2     1       0
2099-01-01T10:00:00Z  30        2     1       0
2099-01-01T11:00:00Z  40        2     1       0
`
	if code != 0 || got != want {
		t.Errorf("exit code %d and\n%swant\n%s", code, got, want)
	}
}

func TestUsageShowHasWhatAPolicyChargedAndLeft(t *testing.T) {
	code, got := showUsage(t, "acme", "--by", "endpoint,policy", "--step", "1d", "--endpoint", "GET /a")
	if code != 0 || !strings.Contains(got, "GET /a    daily   100       8     4       0              0     120   70\n") {
		t.Errorf("exit code %d and\n%s", code, got)
	}
}

func TestUsageShowWritesADocument(t *testing.T) {
	code, got := showUsage(t, "acme", "--policy", "daily", "-o", "json")
	var found rows.UsageHistory
	if err := json.Unmarshal([]byte(got), &found); err != nil || code != 0 || len(found.Items) != 4 ||
		*found.Items[0].Cost != 30 || found.Step != "1h" || !found.To.Equal(noon) {
		t.Errorf("exit code %d and %s (%v)", code, got, err)
	}
}

func TestUsageShowReportsWhatIsWrong(t *testing.T) {
	for want, args := range map[string][]string{
		"no usage of globex":         {"globex"},
		`--step: "5m": must be 1m`:   {"acme", "--step", "5m"},
		`--by: "tenant": must be`:    {"acme", "--by", "tenant"},
		"more than 1500 steps apart": {"acme", "--step", "1m", "--last", "30d"},
		"must be a duration above 0": {"acme", "--last", "-1h"},
		"expected TENANT":            {},
	} {
		if _, got := showUsage(t, args...); !strings.Contains(got, want) {
			t.Errorf("%v: %s, want %q", args, got, want)
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
