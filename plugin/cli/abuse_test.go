package cli

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// abused returns a terminal on a database in which acme has a penalty and globex a warning. Operators call it.
func abused(t *testing.T) *terminal {
	t.Helper()
	s := pgtest.Granted(t)
	pool := pgtest.Pool(t, s.RoleDSN("postgres"))
	_, err := pool.Exec(t.Context(), `WITH penalty AS (
			INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, source, expires_at)
			VALUES ('multiplier', 'acme', 500, 'abuse detection', 'abuse detector', 'detector', '2099-01-01T12:30:00Z')
			RETURNING id, expires_at)
		INSERT INTO rate_limiter.abuse_tenants (tenant, state, mode, reason, scored_at, override, override_until)
		SELECT 'acme', '{"step": "half", "since": "2099-01-01T11:50:00Z", "flagged_at": "2099-01-01T11:58:00Z",
			"demand": {"mean": 120.4, "variance": 9, "learned": 300}}'::jsonb, 'enforce', 'denied 90 %',
			'2099-01-01T11:59:00Z'::timestamptz, id, expires_at
		FROM penalty
		UNION ALL SELECT 'globex', '{"step": "warn", "since": "2099-01-01T11:55:00Z"}', 'enforce', 'denied 85 %',
			'2099-01-01T11:59:00Z', NULL, NULL
		UNION ALL SELECT 'calm', '{"step": "none", "demand": {"mean": 7, "learned": 1}}', 'enforce', '',
			'2099-01-01T11:59:00Z', NULL, NULL`)
	if err == nil {
		_, err = pool.Exec(t.Context(), `INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
			VALUES ('2099-01-01T11:45:00Z', 'acme', 'none', 'warn', 'enforce', 'denied 85 %'),
				('2099-01-01T11:50:00Z', 'acme', 'warn', 'half', 'enforce', 'denied 90 %')`)
	}
	require.NoError(t, err)
	return &terminal{t: t, env: map[string]string{databaseVariable: s.RoleDSN(pgtest.Operator)}}
}

// shows calls the program and compares what it writes.
func (x *terminal) shows(want string, args ...string) {
	x.t.Helper()
	x.output.Reset()
	code := x.call(args...)
	if got := x.output.String(); code != 0 || got != want {
		x.t.Errorf("ratelimit %s: exit code %d and\n%swant\n%s", strings.Join(args, " "), code, got, want)
	}
}

func TestAbuseCommandsShowTheLadderAndTakeATenantOffIt(t *testing.T) {
	x := abused(t)
	list := x.must("abuse", "list")
	require.Contains(t, list, "acme    half  enforce  denied 90 %  2099-01-01T11:50:00Z  2099-01-01T11:58:00Z  1         2099-")
	require.Contains(t, list, "globex  warn  enforce  denied 85 %  2099-01-01T11:55:00Z  -                     -         -")
	x.shows(`ORG ID  STEP  MODE     USUAL REQUESTS  LEARNED MINUTES  SCORED AT
calm    none  enforce  7               1                2099-01-01T11:59:00Z
`, "abuse", "list", "--step", "none")
	x.shows(`org id           acme
step             half
mode             enforce
reason           denied 90 %
since            2099-01-01T11:50:00Z
flagged at       2099-01-01T11:58:00Z
override         1
override until   2099-01-01T12:30:00Z
usual requests   120.4
learned minutes  300
scored at        2099-01-01T11:59:00Z

moves:
AT                    FROM  TO    MODE     REASON
2099-01-01T11:50:00Z  warn  half  enforce  denied 90 %
2099-01-01T11:45:00Z  none  warn  enforce  denied 85 %
`, "abuse", "explain", "acme")
	x.output.Reset()
	code := x.call("abuse", "forgive", "acme", "--for", "2h", "--reason", "a load test")
	want := regexp.MustCompile(`^forgave acme until \S+Z, ended override 1; version 2\n$`)
	if got := x.output.String(); code != 0 || !want.MatchString(got) {
		t.Errorf("exit code %d and\n%s", code, got)
	}
	x.output.Reset()
	if code := x.call("abuse", "explain", "acme", "-o", "json"); code != 0 ||
		!strings.Contains(x.output.String(), `"reason": "forgiven by ann@laptop: a load test"`) ||
		!strings.Contains(x.output.String(), `"step": "none"`) {
		t.Errorf("exit code %d and\n%s", code, x.output.String())
	}
	x.output.Reset()
	if code := x.call("abuse", "list", "-o", "yaml", "--all"); code != 0 ||
		!strings.Contains(x.output.String(), "org_id: calm\n") {
		t.Errorf("exit code %d and\n%s", code, x.output.String())
	}
}

func TestAbuseCommandsNameWhatIsWrong(t *testing.T) {
	x := abused(t)
	for args, want := range map[string]string{
		"abuse list --step jail":                  "--step: \"jail\": must be one of none, warn",
		"abuse forgive acme --for 31d --reason x": "--for: must be at most 30d",
		"abuse forgive acme":                      "--reason",
		"abuse forgive unscored --reason x":       "does not exist",
		"serve --abuse hard":                      "must be off, shadow or enforce",
		"serve --abuse-denied-share 40":           "must be a whole number from 50 to 100",
	} {
		x.output.Reset()
		if code := x.call(strings.Fields(args)...); code == 0 || !strings.Contains(x.output.String(), want) {
			t.Errorf("ratelimit %s: exit code %d and\n%s", args, code, x.output.String())
		}
	}
	x.env["ABUSE_DETECTION_ENABLED"] = "maybe"
	x.output.Reset()
	if code := x.call("serve"); code == 0 || !strings.Contains(x.output.String(), "ABUSE_DETECTION_ENABLED") {
		t.Errorf("exit code %d and\n%s", code, x.output.String())
	}
}
