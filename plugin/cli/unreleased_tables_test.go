package cli

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// unreleased makes the tables look like those of a program from before 0.1.0, of which 36 migrations were applied.
const unreleased = `ALTER TABLE rate_limiter.policies ADD COLUMN slot text NOT NULL DEFAULT 'active';
	INSERT INTO rate_limiter.migrations (version_id, is_applied) SELECT n, true FROM generate_series(9, 36) n`

func TestTablesFromBeforeTheFirstReleaseAreOneErrorThatSaysWhatToDo(t *testing.T) {
	dsn := pgtest.Shared(t).Database(t)
	pool := pgtest.Pool(t, dsn)
	do := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do(unreleased)
	x := &terminal{t: t, env: map[string]string{databaseVariable: dsn}}
	for _, args := range []string{
		"migrate up", "migrate down --yes", "migrate status", "policy list", "tidy", "serve --listen 127.0.0.1:0",
	} {
		x.output.Reset()
		code := x.call(strings.Fields(args)...)
		if text := x.output.String(); code != exitFailed || strings.Count(text, "\n") != 1 ||
			!strings.Contains(text, "from before 0.1.0") || !strings.Contains(text, "DROP SCHEMA rate_limiter CASCADE") {
			t.Errorf("%s exits with %d, want one line with what to do:\n%s", args, code, text)
		}
	}
	do(`DROP SCHEMA rate_limiter CASCADE`)
	x.must("migrate", "up")
	x.must("policy", "list")
}
