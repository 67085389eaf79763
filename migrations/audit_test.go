package migrations_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

func TestOnlyTheServerRoleWritesAsACallerOfTheAPI(t *testing.T) {
	s := pgtest.Granted(t)
	for role, may := range map[string]bool{pgtest.Operator: false, pgtest.ServerRole: true} {
		conn := connect(t, s, role)
		for i, actor := range []string{"token:ann", " Token:ann", "oidc:ann", " OIDC:ann"} {
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`SET rate_limiter.actor = '%s';
				INSERT INTO rate_limiter.tiers (name) VALUES ('%s-%d')`, actor, role, i))
			violated := new(pgconn.PgError)
			if may && err != nil || !may && (!errors.As(err, &violated) || violated.ConstraintName != "audit_actor_token") {
				t.Errorf("%s writes as %q: %v, want it allowed: %v", role, actor, err, may)
			}
		}
	}
	for _, row := range audit(t, pgtest.Pool(t, s.RoleDSN(pgtest.Owner))) {
		if row.Key[:6] != "server" {
			t.Errorf("the audit has %+v, want the change by the server", row)
		}
	}
}

func TestTheSecondOfTwoConcurrentTokensOfOneNameWaitsForTheFirst(t *testing.T) {
	s := pgtest.Granted(t)
	const make = `INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('ci', sha256(random()::text::bytea), '%s')`
	first, second := connect(t, s, pgtest.Operator), connect(t, s, pgtest.Operator)
	_, err := first.Exec(t.Context(), `BEGIN; `+fmt.Sprintf(make, "admin")+
		`; UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'ann'`)
	require.NoError(t, err)
	ended := awaitLock(t, s, func() error {
		_, err := second.Exec(t.Context(), fmt.Sprintf(make, "viewer"))
		return err
	})
	if _, err := first.Exec(t.Context(), `COMMIT`); err != nil {
		t.Fatal(err)
	}
	if violated := new(pgconn.PgError); !errors.As(<-ended, &violated) ||
		violated.ConstraintName != "tokens_one_role_per_name" {
		t.Errorf("the second ends with %v, want an error of its role", violated)
	}
}

// awaitLock runs do in a goroutine and returns once it waits for a lock. The channel receives the error of do.
func awaitLock(t *testing.T, s *pgtest.Server, do func() error) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	pool := pgtest.Pool(t, s.RoleDSN("postgres"))
	for waiting := 0; waiting == 0; {
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		require.NoError(t, err)
	}
	return ended
}

// unseen lists names that look like another one, or like that of a token.
var unseen = []string{
	"\ttoken:ann", "\u200btoken:ann", "x\ntoken:ann", "token:ann\u00a0", "\u00a0ann", "ann\u2003", "a\u00adnn", "\x7fann",
	"ann\x1b[2K", "ann\u0085", "\u2066ann", "ann\ufeff", "\U000e0041ann", "\u3164ann", "ann\u2028",
}

// naming lists statements that write the name of an actor, $1, by the constraint of that name.
var naming = map[string]string{
	"audit_actor": `SELECT set_config('rate_limiter.actor', $1, false)`,
	"overrides_author": `INSERT INTO rate_limiter.overrides (kind, tenant, reason, permanent, author)
		VALUES ('ban', 'a', 'r', true, $1)`,
	"webhooks_created_by": `INSERT INTO rate_limiter.webhooks (url, created_by) VALUES ('https://a.example', $1)`,
	"tokens_created_by": `INSERT INTO rate_limiter.tokens (name, hash, role, created_by)
		VALUES ('ci', sha256('a'), 'viewer', $1)`,
	"tokens_revoked_by": `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = $1 WHERE name = 'old'`,
}

// violates returns the constraint that a statement violates; empty: none.
func violates(t *testing.T, err error) string {
	t.Helper()
	violated := new(pgconn.PgError)
	if err != nil && !errors.As(err, &violated) {
		t.Fatal(err)
	}
	return violated.ConstraintName
}

// writeName runs a statement of naming and a change after it in a transaction that is rolled back, and returns the
// violated constraint.
func writeName(t *testing.T, conn *pgx.Conn, statement, name string) string {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err = tx.Exec(t.Context(), statement, name); err == nil {
		_, err = tx.Exec(t.Context(), `INSERT INTO rate_limiter.tiers (name) VALUES ('gold')`)
	}
	return violates(t, err)
}

func TestNamesWithInvisibleCharactersAreInvalid(t *testing.T) {
	s := pgtest.Granted(t)
	exec(t, pgtest.Pool(t, s.RoleDSN(pgtest.Operator)),
		`INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('old', sha256('b'), 'viewer')`)
	operator, server := connect(t, s, pgtest.Operator), connect(t, s, pgtest.ServerRole)
	for constraint, statement := range naming {
		for _, name := range unseen {
			if got := writeName(t, operator, statement, name); got != constraint+"_seen" {
				t.Errorf("%q written as %s violates %q, want %s_seen", name, constraint, got, constraint)
			}
		}
		for _, name := range []string{"token:ann", "TOKEN:root", "oidc:ann", "Oidc:root"} {
			if got := writeName(t, operator, statement, name); got != constraint+"_token" {
				t.Errorf("%q written as %s violates %q, want %s_token", name, constraint, got, constraint)
			}
		}
		for _, name := range []string{"ann", "Ann Ä. O'Neill (on call)", "李", "oidc", "not oidc:ann"} {
			if got := writeName(t, operator, statement, name); got != "" {
				t.Errorf("%q written as %s violates %s, want it accepted", name, constraint, got)
			}
		}
	}
	for _, constraint := range []string{"audit_actor", "overrides_author", "webhooks_created_by"} {
		for _, name := range []string{"token:ann", "oidc:ann@example.org"} {
			if got := writeName(t, server, naming[constraint], name); got != "" {
				t.Errorf("%q written as %s by the process that serves the API violates %s", name, constraint, got)
			}
		}
	}
}

func TestAnOperatorChangesAnOverrideOfAToken(t *testing.T) {
	s := pgtest.Granted(t)
	exec(t, pgtest.Pool(t, s.RoleDSN(pgtest.ServerRole)), naming["overrides_author"], "token:ann")
	as(t, pgtest.Pool(t, s.RoleDSN(pgtest.Operator)), "bob", "why",
		`UPDATE rate_limiter.overrides SET reason = 'other', author = author`)
}

func TestTheNameOfALiveTokenCannotBeTaken(t *testing.T) {
	s := pgtest.Granted(t)
	operator := connect(t, s, pgtest.Operator)
	const make = `INSERT INTO rate_limiter.tokens (name, hash, role, org, revoked_at, revoked_by)
		VALUES ($1, sha256(random()::text::bytea), $2, $3, CASE WHEN $4 <> '' THEN now() END, $4)`
	if _, err := operator.Exec(t.Context(), make, "ann", "admin", "", ""); err != nil {
		t.Fatal(err)
	}
	for _, other := range []struct{ name, role, org, revoked, violates string }{
		{"ann", "tenant", "acme", "bob", "tokens_made_live"},
		{"carl", "tenant", "acme", "bob", "tokens_made_live"},
		{"ann", "tenant", "acme", "", "tokens_one_per_name"},
		{"ANN", "tenant", "acme", "", "tokens_one_role_per_name"},
		{"Ann", "admin", "", "", "tokens_one_role_per_name"},
	} {
		_, err := operator.Exec(t.Context(), make, other.name, other.role, other.org, other.revoked)
		if got := violates(t, err); got != other.violates {
			t.Errorf("%+v violates %q", other, got)
		}
	}
	_, err := operator.Exec(t.Context(), `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'bob'`)
	require.NoError(t, err)
	for _, other := range []string{"tenant", "viewer"} {
		_, err := operator.Exec(t.Context(), make, "ann", other, map[string]string{"tenant": "acme"}[other], "")
		if got := violates(t, err); got != "tokens_one_role_per_name" {
			t.Errorf("a %s of the admin's name violates %q", other, got)
		}
	}
	if _, err := operator.Exec(t.Context(), make, "ann", "admin", "", ""); err != nil {
		t.Errorf("the admin renews the token: %v", err)
	}
}
