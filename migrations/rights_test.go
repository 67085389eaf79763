package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/migrations"
)

// pairs returns the rows of a query of two texts as a map.
func pairs(t *testing.T, pool *pgxpool.Pool, sql string) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, key, value := map[string]string{}, "", ""
	if _, err := pgx.ForEachRow(rows, []any{&key, &value}, func() error { all[key] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no rows: %s", sql)
	}
	return all
}

func TestEveryFunctionPinsItsSearchPathAndEveryColumnHasATypeOfPostgres(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Granted(t).RoleDSN(pgtest.Owner))
	for function, settings := range pairs(t, pool, `SELECT oid::regprocedure::text, coalesce(proconfig::text, '')
		FROM pg_proc
		WHERE pronamespace = 'rate_limiter'::regnamespace`) {
		if settings != `{"search_path=pg_catalog, pg_temp"}` {
			t.Errorf("%s has the settings %s, want a search_path of pg_catalog and, last, pg_temp", function, settings)
		}
	}
	for column, schema := range pairs(t, pool, `SELECT attrelid::regclass || '.' || attname,
			typnamespace::regnamespace::text
		FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_type t ON t.oid = atttypid
		WHERE c.relnamespace = 'rate_limiter'::regnamespace AND attnum > 0 AND NOT attisdropped`) {
		if schema != "pg_catalog" {
			t.Errorf("%s has a type of the schema %s, whose casts may be of another role", column, schema)
		}
	}
}

func TestOtherRolesMayNotExecuteFunctionsOfLaterMigrations(t *testing.T) {
	s := pgtest.Granted(t)
	pool := pgtest.Pool(t, s.RoleDSN(pgtest.Owner))
	exec(t, pool, `CREATE FUNCTION rate_limiter.later() RETURNS int LANGUAGE sql AS 'SELECT 1'`)
	exec(t, pool, `CREATE PROCEDURE rate_limiter.later_too() LANGUAGE sql AS 'SELECT 1'`)
	exec(t, pool, `CREATE TABLE rate_limiter.later (x int)`)
	for _, role := range pgtest.Roles {
		conn := connect(t, s, role)
		for _, statement := range []string{
			`SELECT rate_limiter.later()`, `CALL rate_limiter.later_too()`, `SELECT * FROM rate_limiter.later`,
		} {
			if _, err := conn.Exec(t.Context(), statement); !isDenied(err) {
				t.Errorf("%s: %s: %v, want permission denied", role, statement, err)
			}
		}
	}
}

// TestRightsOfTheReadmeSufficeAndDoNotReachTheRecord runs the tasks of each role, and statements that it may not run.
func TestRightsOfTheReadmeSufficeAndDoNotReachTheRecord(t *testing.T) {
	s := pgtest.Granted(t)
	insertGood(t, pgtest.Pool(t, s.RoleDSN("postgres")), "policies", "overrides", "tokens")
	roleRights(t, s)
}

func roleRights(t *testing.T, s *pgtest.Server) {
	t.Helper()
	const forge = `INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant)
		VALUES (1, 'x', '', '', '', '', '')`
	const put = `INSERT INTO rate_limiter.policies (name, tier, scope, endpoint, "limit", window_size)
		VALUES ('hourly', 'gold', 'tenant', 'GET /a', 9, 60)`
	const ban = `INSERT INTO rate_limiter.overrides (kind, ip, reason, author, permanent)
		VALUES ('ban', '10.0.0.1', 'r', 'a', true)`
	const report = `INSERT INTO rate_limiter.nodes (node, version, enforced_at, reported_at)
		VALUES ('n1', 1, now(), now())`
	const token = `INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('new', sha256('new'), 'admin')`
	const orgToken = `SELECT rate_limiter.create_org_token('acme', 'ci', sha256('x'), '1 day')`
	const revoke = `UPDATE rate_limiter.tokens SET revoked_at = now(), revoked_by = 'ann'`
	const reset = `SELECT rate_limiter.record_action('reset', 'buckets', 'acme', NULL)`
	const readSecrets = `SELECT secret FROM rate_limiter.webhook_secrets`
	const addEvent = `INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
		VALUES ('x', '/control', 'x', now(), '', '{}')`
	const penalize = `SELECT rate_limiter.penalize('acme', 500, now() + interval '1 hour', 'x')`
	const forgive = `SELECT rate_limiter.forgive_abuse('acme', '1 hour')`
	const turn = `DELETE FROM rate_limiter.overrides WHERE false`
	const candidate = `INSERT INTO rate_limiter.candidates (name) VALUES ('new')`
	for role, does := range map[string]struct{ may, mayNot []string }{
		"node": {
			may: []string{`SELECT * FROM rate_limiter.overrides`, report},
			mayNot: []string{
				candidate,
				`SELECT * FROM rate_limiter.audit`, `SELECT * FROM rate_limiter.tokens`, put, ban, turn, reset,
				`SELECT * FROM rate_limiter.usage_batches`, `SELECT * FROM rate_limiter.usage_days`,
				`DELETE FROM rate_limiter.usage_batches`, `SELECT rate_limiter.keep_usage_partitions()`,
				`INSERT INTO rate_limiter.usage_batches DEFAULT VALUES`,
				`SELECT * FROM rate_limiter.outbox`, addEvent, readSecrets, `SELECT id FROM rate_limiter.webhooks`,
				`SELECT id FROM rate_limiter.webhook_secrets`, `SELECT id FROM rate_limiter.webhook_deliveries`,
				`SELECT id FROM rate_limiter.webhook_denials`, `SELECT id FROM rate_limiter.recent_denials`,
				orgToken, `SELECT rate_limiter.drop_recent_denials(9)`,
				`SELECT * FROM rate_limiter.abuse_tenants`, penalize, forgive,
			},
		},
		"operator": {
			may: []string{
				put, ban, turn, token, revoke, reset, `UPDATE rate_limiter.policies SET "limit" = 7`,
				`DELETE FROM rate_limiter.overrides`,
			},
			mayNot: []string{
				forge, `UPDATE rate_limiter.version SET version = 7`, `SELECT rate_limiter.take_version()`,
				`DELETE FROM rate_limiter.audit`,
				`UPDATE rate_limiter.audit SET actor = 'x'`, `INSERT INTO rate_limiter.override_history DEFAULT VALUES`,
				addEvent, `DELETE FROM rate_limiter.outbox`, readSecrets, `DELETE FROM rate_limiter.recent_denials`,
				penalize, `UPDATE rate_limiter.abuse_tenants SET mode = 'shadow'`,
			},
		},
		"server": {
			may: []string{
				put, ban, turn, reset, `UPDATE rate_limiter.tokens SET last_used_at = now()`, report,
				`UPDATE rate_limiter.nodes SET version = 1`,
				`INSERT INTO rate_limiter.answers (token, key, request, answer, version)
					VALUES ('ci', 'k', sha256(''), '{}', 1)`,
				`DELETE FROM rate_limiter.nodes`,
			},
			mayNot: []string{
				revoke, token, `INSERT INTO rate_limiter.recent_denial_counts VALUES ('acme', 1)`, forge, `DELETE FROM rate_limiter.changes`, `UPDATE rate_limiter.usage_days SET admitted = 0`,
				addEvent, penalize, `SELECT rate_limiter.lift_penalty('', 'x')`,
				readSecrets, `UPDATE rate_limiter.webhook_secrets SET secret = '123456789012345678901234'`,
			},
		},
		"keeper": {
			may: []string{
				turn, `DELETE FROM rate_limiter.overrides WHERE expires_at < now()`, `DELETE FROM rate_limiter.changes`,
				`DELETE FROM rate_limiter.answers`,
				`INSERT INTO rate_limiter.usage_models AS t VALUES (1, 1, 1, 1, '2026-01-01', 1, 'm')
					ON CONFLICT (tenant, day, model) DO UPDATE SET calls = t.calls + 1`,
				`UPDATE rate_limiter.usage_names SET unit = 'usd'`, `DELETE FROM rate_limiter.usage_models`,
				`DELETE FROM rate_limiter.nodes WHERE reported_at < now()`, `UPDATE rate_limiter.version SET pruned = version`,
			},
			mayNot: []string{
				`UPDATE rate_limiter.version SET version = 7`, put, ban, token, reset, candidate,
				`SELECT * FROM rate_limiter.tokens`,
				`UPDATE rate_limiter.usage_names SET name = 'x'`,
				`DELETE FROM rate_limiter.usage_days`, `DROP TABLE rate_limiter.usage_days`,
				`UPDATE rate_limiter.outbox SET data = '{}'`, forgive,
				`UPDATE rate_limiter.webhooks SET url = 'https://a.example'`,
			},
		},
	} {
		conn := connect(t, s, role)
		try := func(statement string) error {
			_, err := conn.Exec(t.Context(), `BEGIN; SET LOCAL rate_limiter.reason = 'a test'; `+statement)
			if _, ended := conn.Exec(t.Context(), `ROLLBACK`); ended != nil {
				t.Fatal(ended)
			}
			return err
		}
		for _, statement := range does.may {
			if err := try(statement); err != nil {
				t.Errorf("%s: %s: %v, want it allowed", role, statement, err)
			}
		}
		for _, statement := range does.mayNot {
			if err := try(statement); !isDenied(err) {
				t.Errorf("%s: %s: %v, want permission denied", role, statement, err)
			}
		}
	}
}

// The partitions of usage have the rights of their tables alone.
func TestPartitionsThatTheKeeperMakesBelongToTheOwnerAndGrantNothing(t *testing.T) {
	s := pgtest.Granted(t)
	keeper := connect(t, s, pgtest.Keeper)
	if _, err := keeper.Exec(t.Context(), `SELECT rate_limiter.keep_usage_partitions()`); err != nil {
		t.Fatal(err)
	}
	for name, rights := range pairs(t, pgtest.Pool(t, s.RoleDSN(pgtest.Owner)), `SELECT relname::text,
			relowner::regrole || coalesce(relacl::text, '')
		FROM pg_class WHERE relispartition AND relkind = 'r' AND relnamespace = 'rate_limiter'::regnamespace`) {
		if rights != pgtest.Owner {
			t.Errorf("%s has the owner and rights %s, want %s and none", name, rights, pgtest.Owner)
		}
	}
	node := connect(t, s, pgtest.Node)
	const report = `SELECT rate_limiter.report_usage('edge-1', '0123456789abcdef', 1, '1 s', 'x')`
	if _, err := node.Exec(t.Context(), report); err != nil {
		t.Errorf("a node reports usage: %v", err)
	}
	for _, role := range []string{pgtest.Operator, pgtest.Keeper} {
		if _, err := connect(t, s, role).Exec(t.Context(), report); !isDenied(err) {
			t.Errorf("%s reports usage: %v, want permission denied", role, err)
		}
	}
	var login string
	if err := keeper.QueryRow(t.Context(), `SELECT login FROM rate_limiter.usage_batches`).Scan(&login); err != nil ||
		login != pgtest.Node {
		t.Errorf("the batch has the login %q (%v), want that of the node", login, err)
	}
}

func TestTheSchemaOfASuperuserCanBeGivenToAnotherOwner(t *testing.T) {
	s := pgtest.Start(t)
	s.SetUpRoles(t)
	s.MigrateAs(t, "postgres")
	s.RunBlock(t, "postgres", pgtest.GrantsBlock)
	root := parse(t, s.RoleDSN("postgres"))
	if owner, err := migrations.SuperuserOwner(t.Context(), root); err != nil || owner != "postgres" {
		t.Errorf("the superuser that owns the schema is %q (%v), want postgres", owner, err)
	}
	s.RunBlock(t, "postgres", pgtest.HandOverBlock)
	if owner, err := migrations.SuperuserOwner(t.Context(), root); err != nil || owner != "" {
		t.Errorf("after it was handed over, the superuser that owns the schema is %q (%v)", owner, err)
	}
	insertGood(t, pgtest.Pool(t, s.RoleDSN("postgres")), "policies", "overrides", "tokens")
	roleRights(t, s)

	config := parse(t, s.RoleDSN(pgtest.Owner))
	if _, err := migrations.Down(t.Context(), config); err != nil {
		t.Fatalf("the owner reverts a migration of the superuser: %v", err)
	}
	s.MigrateAs(t, "postgres") // works as the owner
	others := pairs(t, pgtest.Pool(t, s.RoleDSN("postgres")), `SELECT what, owner::regrole::text FROM (
		SELECT 'schema ' || nspname, nspowner, oid FROM pg_namespace
		UNION ALL SELECT 'relation ' || relname, relowner, relnamespace FROM pg_class
		UNION ALL SELECT 'function ' || proname, proowner, pronamespace FROM pg_proc
		UNION ALL SELECT 'type ' || typname, typowner, typnamespace FROM pg_type) all_of (what, owner, schema)
		WHERE schema = 'rate_limiter'::regnamespace`)
	for what, owner := range others {
		if owner != pgtest.Owner {
			t.Errorf("the %s belongs to %s", what, owner)
		}
	}
}

func TestAMigrationByAnotherRoleNamesTheOwnerOfTheSchema(t *testing.T) {
	s := pgtest.Granted(t)
	_, err := migrations.Up(t.Context(), parse(t, s.RoleDSN(pgtest.Operator)))
	if err == nil || !strings.Contains(fmt.Sprint(err), "belongs to the role owner: migrate as it") {
		t.Errorf("%v, want the owner named", err)
	}
}
