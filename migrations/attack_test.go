package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/pgtest"
)

// loot holds statements that need the rights of the schema's owner. The last one needs a superuser.
const loot = `INSERT INTO rate_limiter.tokens (name, hash, role)
	VALUES (md5(random()::text), sha256(random()::text::bytea), 'admin');
	INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant)
	VALUES (1, 'ann', '', '', '', '', '');
	IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
		COPY (SELECT 1) TO PROGRAM 'cat >/dev/null';
	END IF;`

// bait creates a type whose casts run the loot.
const bait = `CREATE TYPE pg_temp.evil AS ENUM ('x');
	CREATE FUNCTION pg_temp.loot() RETURNS void LANGUAGE plpgsql AS $$ BEGIN ` + loot + ` END $$;
	CREATE FUNCTION pg_temp.as_json(pg_temp.evil) RETURNS json LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_temp.loot(); RETURN '{}'; END $$;
	CREATE FUNCTION pg_temp.as_text(pg_temp.evil) RETURNS text LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_temp.loot(); RETURN 'ban'; END $$;
	CREATE CAST (pg_temp.evil AS json) WITH FUNCTION pg_temp.as_json(pg_temp.evil);
	CREATE CAST (pg_temp.evil AS text) WITH FUNCTION pg_temp.as_text(pg_temp.evil) AS ASSIGNMENT;`

// takeovers pass the bait to the trigger functions that run as the owner.
var takeovers = map[string]string{
	"record": `CREATE TEMP TABLE t (id text, org text, e pg_temp.evil);
		CREATE TRIGGER t AFTER INSERT ON t REFERENCING NEW TABLE AS new_rows
		EXECUTE FUNCTION rate_limiter.record('tier', 'id', 'org');
		INSERT INTO t VALUES ('a', 'b', 'x')`,
	"record_token": `CREATE TEMP TABLE t (name text, org text, e pg_temp.evil);
		CREATE TRIGGER t AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_token();
		INSERT INTO t VALUES ('a', 'b', 'x')`,
	"keep_candidate_open": `CREATE TEMP TABLE t (candidate pg_temp.evil);
		CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();
		INSERT INTO t VALUES ('x')`,
	"keep_candidate": `CREATE TEMP TABLE t (name text, created_by pg_temp.evil);
		CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate();
		INSERT INTO t VALUES ('a', 'x')`,
	"remember_override": `CREATE TEMP TABLE t (id bigint, kind pg_temp.evil, tenant text, "user" text, endpoint text,
			credential text, ip text, policy text, "limit" bigint, window_size bigint, burst bigint, factor bigint,
			reason text, author text,
			created_at timestamptz, expires_at timestamptz, permanent boolean, source text, revision bigint);
		CREATE TRIGGER t AFTER DELETE ON t REFERENCING OLD TABLE AS old_rows
		EXECUTE FUNCTION rate_limiter.remember_override();
		INSERT INTO t VALUES (1, 'x', '', '', '', '', '', '', 1, 1, 1, 1, 'r', 'a', now(), now(), true, 's', 1);
		SET rate_limiter.reason = 'r'; DELETE FROM t`,
}

// grantDefaults grants the default rights of a database to every role: temporary tables, and the schema public as in
// Postgres 13 and 14.
func grantDefaults(t *testing.T, s *pgtest.Server) {
	t.Helper()
	s.Psql(t, s.RoleDSN("postgres"), `GRANT TEMPORARY ON DATABASE ratelimit TO PUBLIC;
		GRANT CREATE, USAGE ON SCHEMA public TO PUBLIC;`)
}

// connect connects as a role until the test ends.
func connect(t *testing.T, s *pgtest.Server, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.RoleDSN(role))
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// isDenied reports whether Postgres denied a statement for a missing right.
func isDenied(err error) bool {
	denied := new(pgconn.PgError)
	return errors.As(err, &denied) && denied.Code == "42501"
}

func TestNoRoleGetsTheRightsOfTheOwnerThroughItsOwnTypesAndTriggers(t *testing.T) {
	for _, owner := range []string{pgtest.Owner, "postgres"} {
		t.Run("of "+owner, func(t *testing.T) {
			s := pgtest.Start(t)
			s.SetUpRoles(t)
			s.MigrateAs(t, owner)
			s.RunBlock(t, owner, pgtest.GrantsBlock)
			grantDefaults(t, s)
			exec(t, pgtest.Pool(t, s.RoleDSN(pgtest.Operator)), `INSERT INTO rate_limiter.tiers (name) VALUES ('gold')`)
			for _, role := range pgtest.Roles {
				attack(t, s, role)
			}
			wantUnchanged(t, s)
		})
	}
}

func attack(t *testing.T, s *pgtest.Server, role string) {
	t.Helper()
	for function, takeover := range takeovers {
		conn := connect(t, s, role)
		if _, err := conn.Exec(t.Context(), bait); err != nil {
			t.Fatalf("%s prepares the attack: %v", role, err)
		}
		if _, err := conn.Exec(t.Context(), takeover); !isDenied(err) {
			t.Errorf("%s by %s: %v, want permission denied", role, function, err)
		}
	}
}

// wantUnchanged checks that an attack has changed nothing.
func wantUnchanged(t *testing.T, s *pgtest.Server) {
	t.Helper()
	pool := pgtest.Pool(t, s.RoleDSN("postgres"))
	if tokens, rows := count(t, pool, "tokens"), count(t, pool, "audit"); tokens != 0 || rows != 1 {
		t.Errorf("after the attack there are %d tokens and %d audit rows, want 0 and 1", tokens, rows)
	}
}

// A second defense: the functions check their table, in case a role gets the right to execute them.
func TestFunctionsThatRunAsTheOwnerDenyTablesOfOtherRoles(t *testing.T) {
	s := pgtest.Granted(t)
	grantDefaults(t, s)
	exec(t, pgtest.Pool(t, s.RoleDSN(pgtest.Operator)), `INSERT INTO rate_limiter.tiers (name) VALUES ('gold')`)
	s.Psql(t, s.RoleDSN(pgtest.Owner), `GRANT EXECUTE ON ALL ROUTINES IN SCHEMA rate_limiter TO node`)
	for function, takeover := range takeovers {
		conn := connect(t, s, pgtest.Node)
		_, err := conn.Exec(t.Context(), bait+takeover)
		if !isDenied(err) || !strings.Contains(err.Error(), "is for tables of rate_limiter") {
			t.Errorf("%s on a temporary table: %v, want it denied", function, err)
		}
	}
	wantUnchanged(t, s)
	node := connect(t, s, pgtest.Node)
	for function := range pairs(t, pgtest.Pool(t, s.RoleDSN(pgtest.Owner)), `SELECT proname::text, '' FROM pg_proc
			WHERE pronamespace = 'rate_limiter'::regnamespace AND prosecdef AND prorettype = 'trigger'::regtype`) {
		_, err := node.Exec(t.Context(), fmt.Sprintf(`CREATE TEMP TABLE %[1]s (x int);
			CREATE TRIGGER t BEFORE INSERT ON %[1]s FOR EACH ROW EXECUTE FUNCTION rate_limiter.%[1]s('a', 'b', 'c');
			INSERT INTO %[1]s VALUES (1)`, function))
		if !isDenied(err) || !strings.Contains(err.Error(), function+" is for tables of rate_limiter") {
			t.Errorf("%s on a temporary table: %v, want it denied", function, err)
		}
	}
}

func TestANodeNeitherForgesTheAuditNorStopsTheWriters(t *testing.T) {
	s := pgtest.Granted(t)
	grantDefaults(t, s)
	conn := connect(t, s, pgtest.Node)
	for _, statement := range []string{
		`SELECT rate_limiter.record_action('reset', 'buckets', 'acme', '{"forged": true}')`,
		`SELECT rate_limiter.await_turn()`,
		`SELECT rate_limiter.take_version()`,
		`CREATE TEMP TABLE t (x int); CREATE TRIGGER t BEFORE INSERT ON t EXECUTE FUNCTION rate_limiter.queue();
			INSERT INTO t VALUES (1)`,
		`CALL rate_limiter.keep_record('rate_limiter.nodes', 'a', 'b', 'c')`,
		`DELETE FROM rate_limiter.overrides WHERE false`,
		`SELECT 1 FROM rate_limiter.version FOR UPDATE`,
		`SELECT 1 FROM rate_limiter.policies FOR SHARE`,
		`DO 'BEGIN LOCK TABLE rate_limiter.policies IN SHARE MODE; END'`,
		`DO 'BEGIN LOCK TABLE rate_limiter.version IN ROW SHARE MODE; END'`,
	} {
		if _, err := conn.Exec(t.Context(), statement); !isDenied(err) {
			t.Errorf("%s: %v, want permission denied", statement, err)
		}
	}
}

// A database that is set up as in the README gives no role the right to create objects.
func TestRolesCreateNothing(t *testing.T) {
	s := pgtest.Granted(t)
	for _, role := range pgtest.Roles {
		conn := connect(t, s, role)
		for _, statement := range []string{
			`CREATE TEMP TABLE t (x int)`, `CREATE TABLE public.t (x int)`,
			`CREATE SCHEMA mine`, `CREATE TABLE rate_limiter.t (x int)`,
			`CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
			`COPY (SELECT 1) TO PROGRAM 'cat >/dev/null'`, `COPY rate_limiter.nodes FROM '/etc/passwd'`,
			`ALTER TABLE rate_limiter.nodes ADD COLUMN x int`,
			`CREATE TRIGGER t AFTER INSERT ON rate_limiter.nodes EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
			`TRUNCATE rate_limiter.nodes`, `SET ROLE owner`,
		} {
			if _, err := conn.Exec(t.Context(), statement); !isDenied(err) {
				t.Errorf("%s: %s: %v, want it denied", role, statement, err)
			}
		}
	}
}

// The role has a schema with operators and functions of the same names as those of Postgres.
func TestFunctionsOfTheSchemaUseNoOperatorOrFunctionOfTheirCaller(t *testing.T) {
	s := pgtest.Granted(t)
	grantDefaults(t, s)
	conn := connect(t, s, pgtest.Operator)
	evil := ""
	for name, signature := range map[string]string{
		"octet_length": "(text) RETURNS int", "btrim": "(text) RETURNS text",
		"regexp_replace": "(text, text, text, text) RETURNS text",
		"family":         "(inet) RETURNS int", "host": "(inet) RETURNS text", "network": "(inet) RETURNS cidr",
		"same": "(text, text) RETURNS boolean", "like_it": "(text, text) RETURNS boolean",
		"add": "(bigint, int) RETURNS bigint",
	} {
		evil += fmt.Sprintf(`CREATE FUNCTION public.%s%s LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'a function of the caller'; END $$;`, name, signature)
	}
	evil += `CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same);
		CREATE OPERATOR public.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = public.like_it);
		CREATE OPERATOR public.+ (LEFTARG = bigint, RIGHTARG = int, FUNCTION = public.add);`
	_, err := conn.Exec(t.Context(), evil+`SET search_path = public, pg_catalog; SET rate_limiter.reason = 'r';
		INSERT INTO rate_limiter.overrides (kind, ip, reason, author, permanent) VALUES ('ban', '10.0.0.1', 'r', 'a', true);
		INSERT INTO rate_limiter.overrides (kind, tenant, endpoint, reason, author, permanent)
			VALUES ('ban', 'acme', 'GET /a/{id}', 'r', 'a', true);
		UPDATE rate_limiter.overrides SET permanent = false, expires_at = '2100-01-01';
		DELETE FROM rate_limiter.overrides;
		INSERT INTO rate_limiter.tokens (name, hash, role) VALUES ('ci', pg_catalog.sha256('x'), 'admin')`)
	if err != nil {
		t.Errorf("a function of the schema calls one of its caller: %v", err)
	}
}
