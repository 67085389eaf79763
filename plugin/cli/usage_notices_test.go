package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// callOnNotices calls ratelimit usage notices on a database with three notices, one of them older than a day at noon.
func callOnNotices(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	dsn := pgtest.Shared(t).Database(t)
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), `
		INSERT INTO rate_limiter.quota_notices (tenant, policy, endpoint, window_start, threshold, window_end, "limit", used,
			exhausted_at, late, noticed_at)
		VALUES ('acme', 'daily', '', '2098-12-31Z', 50, '2099-01-01Z', 100, 55, NULL, true, '2098-12-31 11:00Z'),
			('acme', 'daily', '', '2099-01-01Z', 80, '2099-01-02Z', 100, 85, '2099-01-01 14:20Z', false, '2099-01-01 11:00Z'),
			(E'=cmd,"b"\n', 'daily', 'POST /a', '2099-01-01Z', 100, '2099-01-02Z', 9, 9, NULL, true, '2099-01-01 10:00Z')`)
	require.NoError(t, err)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	code = x.call(append([]string{"usage", "notices"}, args...)...)
	return code, x.output.String()
}

func TestUsageNoticesListsTheLastNoticesFirst(t *testing.T) {
	for want, args := range map[string][]string{
		`NOTICED AT            TENANT    POLICY  ENDPOINT  REACHED  USED  LIMIT  WINDOW ENDS           EXHAUSTED AT          LATE
2099-01-01T11:00:00Z  acme      daily   -         80 %     85    100    2099-01-02T00:00:00Z  2099-01-01T14:20:00Z  no
2099-01-01T10:00:00Z  =cmd,"b"  daily   POST /a   100 %    9     9      2099-01-02T00:00:00Z  -                     yes
`: {},
		`NOTICED AT            TENANT  POLICY  ENDPOINT  REACHED  USED  LIMIT  WINDOW ENDS           EXHAUSTED AT          LATE
2099-01-01T11:00:00Z  acme    daily   -         80 %     85    100    2099-01-02T00:00:00Z  2099-01-01T14:20:00Z  no
2098-12-31T11:00:00Z  acme    daily   -         50 %     55    100    2099-01-01T00:00:00Z  -                     yes
`: {"acme", "--last", "30d"},
		`NOTICED AT            TENANT  POLICY  ENDPOINT  REACHED  USED  LIMIT  WINDOW ENDS           EXHAUSTED AT          LATE
2099-01-01T11:00:00Z  acme    daily   -         80 %     85    100    2099-01-02T00:00:00Z  2099-01-01T14:20:00Z  no
`: {"--limit", "1"},
	} {
		if code, got := callOnNotices(t, args...); code != 0 || got != want {
			t.Errorf("%q: exit code %d and\n%swant\n%s", args, code, got, want)
		}
	}
}

func TestUsageNoticesWritesADocument(t *testing.T) {
	code, got := callOnNotices(t, "acme", "-o", "json")
	var found []rows.QuotaNotice
	if err := json.Unmarshal([]byte(got), &found); err != nil || code != 0 || len(found) != 1 ||
		found[0].ExhaustedAt == nil || found[0].Threshold != 80 {
		t.Errorf("exit code %d and %s (%v)", code, got, err)
	}
}

func TestUsageNoticesReportsWhatIsWrong(t *testing.T) {
	for _, args := range [][]string{{"--limit", "0"}, {"--last", "-1h"}, {"acme", "globex"}} {
		if code, got := callOnNotices(t, args...); code != 2 {
			t.Errorf("%q: exit code %d and %s", args, code, got)
		}
	}
}
