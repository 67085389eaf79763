package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/logtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// reportDenials adds recent denials as a node does.
func reportDenials(t *testing.T, pool *pgxpool.Pool, tenants ...string) {
	t.Helper()
	var rows []string
	for i, tenant := range tenants {
		rows = append(rows, fmt.Sprintf(`{"event":"%s-%d","age":%d,"tenant":%q,"endpoint":"POST /a","policy":"daily",
			"scope":"tenant","limit":100,"window_size":86400,"reason":"quota","shadow":%v,"count":%d,"tenant_count":1,
			"user":"hmac:1","ip":"","retry_after":7}`, tenant, i, 1000*(len(tenants)-i), tenant, i == 1, i+1))
	}
	_, err := pool.Exec(t.Context(), `SELECT rate_limiter.report_recent_denials('n1', $1)`,
		"["+strings.Join(rows, ",")+"]")
	require.NoError(t, err)
}

func TestDenialsListsTheNewestFirstByItsFilters(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	reportDenials(t, pgtest.Pool(t, dsn), "acme", "globex", "acme")
	x := &terminal{t: t, env: map[string]string{"RATELIMIT_DATABASE": dsn}}
	if code := x.call("denials", "--tenant", "acme", "--limit", "1"); code != 0 {
		t.Fatalf("exit %d: %s", code, x.output.String())
	}
	text := x.output.String()
	for _, part := range []string{"COUNT", "acme", "3 ", "quota", " 100 ", " 1d ", "POST /a", "hmac:1", " 7 "} {
		if !strings.Contains(text, part) {
			t.Errorf("the list has no %q:\n%s", part, text)
		}
	}
	x.output.Reset()
	if code := x.call("denials", "-o", "json"); code != 0 || strings.Count(x.output.String(), `"org":`) != 3 ||
		!strings.Contains(x.output.String(), `"shadow": true`) {
		t.Errorf("exit %d: %s", code, x.output.String())
	}
	x.output.Reset()
	if code := x.call("denials", "--follow", "-o", "json"); code != 2 || !strings.Contains(x.output.String(), "--follow") {
		t.Errorf("exit %d: %s", code, x.output.String())
	}
}

func TestDenialsFollowListsWhatIsReportedUntilItIsEnded(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	reportDenials(t, pool, "first", "second")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out logtest.Text
	ended := make(chan int, 1)
	go func() {
		o := operator{
			getenv: func(name string) string { return map[string]string{"RATELIMIT_DATABASE": dsn}[name] },
			login:  func() string { return "ann@laptop" }, now: func() time.Time { return noon }, stdin: strings.NewReader(""),
			stdout: screen{to: &out}, stderr: screen{to: &out},
		}
		ended <- o.run(ctx, []string{"denials", "--follow"})
	}()
	shows := func(part string) func() bool {
		return func() bool { return strings.Contains(out.String(), part) }
	}
	await.That(t, "the second denial is shown", shows("second"))
	reportDenials(t, pool, "third")
	await.That(t, "the third denial is shown", shows("third"))
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit %d: %s", code, out.String())
	}
	text := out.String()
	if strings.Count(text, "first") != 1 || strings.Index(text, "first") > strings.Index(text, "second") {
		t.Errorf("the lines are\n%s", text)
	}
}

func TestARequestIDShowsWhatDeniedItAndWhatWouldAdmitIt(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	const at = `"age":0,"tenant":"acme","endpoint":"POST /a","scope":"tenant","reason":"quota","shadow":false,"count":1,
		"tenant_count":1,"user":"hmac:1","ip":"","tier":"gold","request_ids":["r1"],"cost":3,"limit":100,
		"window_size":86400`
	_, err := pgtest.Pool(t, dsn).Exec(t.Context(), `SELECT rate_limiter.report_recent_denials('n1', $1)`, `[
		{"event":"a",`+at+`,"policy":"daily","policy_id":17,"policy_version":31,"policy_for":"tenant","remaining":2,
			"retry_after":7,"override":5},
		{"event":"b",`+at+`,"policy":"burst","policy_for":"tier gold","remaining":0,"capacity":2}]`)
	require.NoError(t, err)
	x := &terminal{t: t, env: map[string]string{"RATELIMIT_DATABASE": dsn}}
	for _, command := range []string{"explain", "denials"} {
		x.output.Reset()
		if code := x.call(command, "--request-id", "r1"); code != 0 {
			t.Fatalf("%s: exit %d: %s", command, code, x.output.String())
		}
		for _, part := range []string{
			"acme\n", "gold\n", "hmac:1\n", "POST /a\n", "daily\n", " 100\n", " 1d\n", "policy id ", " 17\n", " 31\n", " 5\n",
			"tier gold\n", " 3\n", "quota\n", "A retry at 2", "by policy 17",
			"A cost of at most 2, which is all that the limit holds",
		} {
			if !strings.Contains(x.output.String(), part) {
				t.Errorf("%s does not show %q:\n%s", command, part, x.output.String())
			}
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"explain", "--request-id", "r1", "-o", "json"}, 0, `"would_admit": "A retry`},
		{[]string{"denials", "--request-id", "r2"}, 1, "denial_request_id"},
		{[]string{"denials", "--request-id", "r1", "--tenant", "globex"}, 1, "request r1 does not exist"},
		{[]string{"denials", "--request-id", "r1", "--follow"}, 2, "not both"},
		{[]string{"explain", "--request-id", "r1", "--tenant", "acme"}, 2, "--tenant"},
	} {
		x.output.Reset()
		if code := x.call(c.args...); code != c.code || !strings.Contains(x.output.String(), c.want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", c.args, code, c.code, c.want, x.output.String())
		}
	}
}
