package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestNoMigrationRunsOnTablesThatAreNewerThanTheProgram(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	do := func(statement string) {
		t.Helper()
		pgtest.Exec(t, pool, statement)
	}
	check := func(code int, want string, args ...string) {
		t.Helper()
		x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
		got := x.call(args...)
		if text := x.output.String(); got != code || !strings.Contains(text, want) || strings.Contains(text, "older than") {
			t.Errorf("%q: exit code %d, want %d and %q in\n%s", args, got, code, want, text)
		}
	}
	do(`INSERT INTO rate_limiter.migrations (version_id, is_applied) VALUES (9000, true)`)
	const newer = "the tables in Postgres are newer than this program (migration 9000"
	check(exitFailed, newer, "migrate", "up")
	check(exitFailed, newer, "migrate", "down")
	check(exitFailed, newer, "migrate", "down", "--yes")
	check(0, "APPLIED BY NEWER PROGRAM", "migrate", "status")
	check(0, "ratelimit migrate status: "+newer, "migrate", "status")
	check(0, `"applied_by_newer_program": true`, "migrate", "status", "-o", "json")
	check(0, "applied_by_newer_program: true", "migrate", "status", "-o", "yaml")
	check(0, "ratelimit migrate status: "+newer, "migrate", "status", "-o", "json")
	check(0, "ratelimit policy list: "+newer, "policy", "list")
	do(`ALTER TABLE rate_limiter.policies RENAME accuracy TO later`)
	check(exitFailed, newer, "policy", "list")
}

func TestMigrateUpWritesNothingAsJSONBeforeItsError(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	const newer = `INSERT INTO rate_limiter.migrations (version_id, is_applied) VALUES (9000, true)`
	if _, err := pgtest.Pool(t, dsn).Exec(t.Context(), newer); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	if code := x.call("migrate", "up", "-o", "json"); code != exitFailed ||
		!strings.HasPrefix(x.output.String(), "ratelimit migrate up: ") {
		t.Errorf("exit code %d, want %d and the error alone in\n%s", code, exitFailed, x.output.String())
	}
}

func TestServeDoesNotStartOnTablesThatAreOlderThanTheProgram(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	x.must("migrate", "down", "--yes")
	x.output.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a process that starts would run until then
	defer cancel()
	o := operator{
		getenv: func(name string) string { return x.env[name] }, login: func() string { return "ann@laptop" }, now: time.Now,
		stdin: strings.NewReader(""), stdout: screen{to: &x.output}, stderr: screen{to: &x.output},
	}
	code := o.run(ctx, []string{"serve", "--listen", "127.0.0.1:0", "--metrics-listen", ""})
	if text := x.output.String(); code == 0 || !strings.Contains(text, "older than this program (migration ") ||
		!strings.Contains(text, "run ratelimit migrate up") {
		t.Errorf("exit code %d, want a failure that names ratelimit migrate up in\n%s", code, text)
	}
}
