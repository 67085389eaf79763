package migrations_test

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// grants finds the README's block of rights.
var grants = regexp.MustCompile("(?s)```sql\n(-- A node reads.*?)```")

func TestRightsOfTheReadmeSufficeAndDoNotReachTheRecord(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Shared(t).Database(t))
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := grants.FindSubmatch(readme)
	if block == nil {
		t.Fatal("the README grants no rights")
	}
	exec(t, pool, `CREATE ROLE node; CREATE ROLE operator; CREATE ROLE keeper; CREATE ROLE server; GRANT operator TO keeper;`)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY node, operator, keeper, server; DROP ROLE node, operator, keeper, server`); err != nil {
			t.Error(err)
		}
	})
	exec(t, pool, string(block[1]))

	const put = `INSERT INTO rate_limiter.policies (name, tier, scope, "limit", window_size) VALUES ('daily', 'gold', 'tenant', 100, 60)`
	const report = `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at) VALUES ('n1', 1, now(), now())`
	const token = `INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('new', sha256('new'), 'admin')`
	insertGood(t, pool, "tokens")
	for _, c := range []struct {
		role, statement string
		allowed         bool
	}{
		{"node", `SELECT * FROM rate_limiter.overrides`, true},
		{"node", `SELECT * FROM rate_limiter.audit`, false},
		{"node", report, true},
		{"node", put, false},
		{"operator", put, true},
		{"operator", `UPDATE rate_limiter.policies SET "limit" = 7`, true},
		{"operator", `DELETE FROM rate_limiter.overrides`, true},
		{"operator", `INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant) VALUES (1, 'x', '', '', '', '', '')`, false},
		{"operator", `UPDATE rate_limiter.version SET version = 7`, false},
		{"operator", `SELECT rate_limiter.take_version()`, false},
		{"keeper", `DELETE FROM rate_limiter.changes`, true},
		{"keeper", `DELETE FROM rate_limiter.answers`, true},
		{"node", `SELECT * FROM rate_limiter.tokens`, false},
		{"operator", token, true},
		{"operator", `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'ann'`, true},
		{"server", put, true},
		{"server", `SELECT rate_limiter.record_action('reset', 'buckets', 'acme', NULL)`, true},
		{"server", `INSERT INTO rate_limiter.answers (token, key, request, answer, version) VALUES ('ci', 'k', sha256(''), '{}', 1)`, true},
		{"server", `UPDATE rate_limiter.tokens SET last_used_at = now()`, true},
		{"server", `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'ann'`, false},
		{"server", token, false},
		{"server", report, true}, // as a node, when it decides
		{"server", `UPDATE rate_limiter.nodes SET version = 1`, true},
		{"server", `DELETE FROM rate_limiter.nodes`, true},
		{"server", `DELETE FROM rate_limiter.changes`, false},
		{"server", `INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant) VALUES (1, 'x', '', '', '', '', '')`, false},
	} {
		err := asRole(t, pool, c.role, c.statement)
		if denied := err != nil && strings.Contains(err.Error(), "permission denied"); denied == c.allowed || err != nil && !denied {
			t.Errorf("%s: %s: %v, want it allowed: %v", c.role, c.statement, err, c.allowed)
		}
	}
}

// asRole runs a statement with the rights of a role, for a reason, and takes it back.
func asRole(t *testing.T, pool *pgxpool.Pool, role, statement string) error {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), `SET LOCAL rate_limiter.reason = 'a test'; SET LOCAL ROLE `+pgx.Identifier{role}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), statement)
	return err
}
