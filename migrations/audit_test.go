package migrations_test

import (
	"errors"
	"fmt"
	"testing"

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
