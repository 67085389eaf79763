-- Who may execute what. Postgres lets PUBLIC execute every new function. A function that runs with the rights of its
-- owner (SECURITY DEFINER) was so open to every role that can connect: with a table, a type and a cast of its own, a role
-- that may only read ran anything as the owner. From here on:
--
--   - PUBLIC executes nothing of this schema, also nothing that later migrations make.
--   - Functions that run as their owner work on tables of this schema alone, so no caller's type or cast is met.
--   - Every function pins search_path, pg_temp last: no caller's operator or function takes the place of a built-in one.
--   - The turn to write is taken by the triggers of the tables, so only roles that may write can take it.
--
-- Roles that had the rights to write keep what their writes execute. README.md has the grants for new roles.

-- +goose Up
-- For the role that migrates, in this database. IN SCHEMA would have no effect: what PUBLIC may do by default can only be
-- revoked for all schemas.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC;
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA rate_limiter FROM PUBLIC;

ALTER FUNCTION rate_limiter.actor() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.reason() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.refuse() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.count_revision() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.want_reason() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.canonical_endpoint(text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.is_endpoint(text) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION rate_limiter.is_address(text) SET search_path = pg_catalog, pg_temp;
ALTER PROCEDURE rate_limiter.keep_record(regclass, text, text, text) SET search_path = pg_catalog, pg_temp;

-- Writers queue before they hold any row of a table: so no two of them wait for each other. It runs as its owner, so
-- nobody else needs a right to take the turn but that to write the table.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.queue() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function queue is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM rate_limiter.await_turn();
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Arguments: the kind, the column that is the key, the column that names the tenant.
-- Runs once a statement, so that a bulk change costs one insert and not a call per row. A row whose key an update changed
-- counts as a delete and an insert.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pairs   text;
    changed boolean;
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function record is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    pairs := CASE TG_OP
        WHEN 'INSERT' THEN 'SELECT NULL::jsonb AS before, to_jsonb(n) AS after FROM new_rows n'
        WHEN 'DELETE' THEN 'SELECT to_jsonb(o) AS before, NULL::jsonb AS after FROM old_rows o'
        ELSE format('SELECT to_jsonb(o) AS before, to_jsonb(n) AS after
            FROM old_rows o FULL JOIN new_rows n ON o.%1$I = n.%1$I', TG_ARGV[1])
    END;
    EXECUTE format('SELECT EXISTS (%s)', pairs) INTO changed;
    IF NOT changed THEN
        RETURN NULL;
    END IF;
    EXECUTE format($record$
        WITH written AS (
            INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
            SELECT $1, rate_limiter.actor(), coalesce(rate_limiter.reason(), after ->> 'reason', ''), $2,
                CASE WHEN before IS NULL THEN 'insert' WHEN after IS NULL THEN 'delete' ELSE 'update' END,
                coalesce(after, before) ->> $3, coalesce(coalesce(after, before) ->> $4, ''), before, after
            FROM (%s) pairs
            RETURNING version, kind, operation, key, tenant
        )
        INSERT INTO rate_limiter.changes (version, kind, operation, key, tenant)
        SELECT version, kind, operation, key, tenant FROM written
    $record$, pairs) USING rate_limiter.take_version(), TG_ARGV[0], TG_ARGV[1], TG_ARGV[2];
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function remember_override is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision,
        ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision,
        rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.record_token() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function record_token is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'token', lower(TG_OP), NEW.name, NEW.org,
        CASE TG_OP WHEN 'UPDATE' THEN to_jsonb(OLD) - 'hash' END, to_jsonb(NEW) - 'hash'
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Roles that write by the grants of earlier versions go on: they keep what their writes execute. One that moves the mark
-- of pruned changes moves nothing else any more.
-- +goose StatementBegin
DO $$
DECLARE
    held record;
BEGIN
    FOR held IN
        SELECT DISTINCT quote_ident(r.rolname) AS role, c.relname AS table, a.privilege_type AS privilege
        FROM pg_class c CROSS JOIN aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.relnamespace = 'rate_limiter'::regnamespace AND a.grantee <> c.relowner
    LOOP
        IF held.privilege = 'INSERT' AND held.table IN ('policies', 'overrides') THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION rate_limiter.canonical_endpoint, rate_limiter.is_endpoint,
                rate_limiter.is_address, rate_limiter.reason, rate_limiter.record_action TO %s', held.role);
        ELSIF held.privilege IN ('UPDATE', 'DELETE') AND held.table = 'overrides' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION rate_limiter.reason TO %s', held.role);
        ELSIF held.privilege = 'INSERT' AND held.table = 'tokens' THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION rate_limiter.actor TO %s', held.role);
        ELSIF held.privilege = 'UPDATE' AND held.table = 'version' THEN
            EXECUTE format('REVOKE UPDATE ON rate_limiter.version FROM %s', held.role);
            EXECUTE format('GRANT UPDATE (pruned) ON rate_limiter.version TO %s', held.role);
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- What programs of the version before execute themselves is open again. The functions stay as they are, and the triggers'
-- stay closed: taking this back does not open the owner's rights.
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON ROUTINES TO PUBLIC;
GRANT EXECUTE ON FUNCTION rate_limiter.actor, rate_limiter.reason, rate_limiter.await_turn, rate_limiter.record_action,
    rate_limiter.canonical_endpoint, rate_limiter.is_endpoint, rate_limiter.is_address TO PUBLIC;
