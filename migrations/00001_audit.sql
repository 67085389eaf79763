-- What every change of the tables of this schema leaves behind: a version, the keys that changed, and an audit row. All
-- of it is written in the transaction of the change, so it comes with the commit or not at all.
--
-- A transaction with changes gets one version. Versions have no gaps, and their order is the order of commits: the row
-- of version is locked from a transaction's first change to its end. So writes wait for each other; readers do not.
--
-- A write sends no notification: every role may fill Postgres's queue of notifications, and then the commit of each
-- transaction that sends one is denied, which no function can catch. Nodes poll the version.
--
-- Who may execute what. A role that can only read could, with a table, a type and a cast of its own, run anything as
-- the owner of a function that runs with the rights of its owner (SECURITY DEFINER). So in all files of this folder:
--   - PUBLIC executes nothing. README.md has the grants for each role. None of them can write the record.
--   - Functions that run as their owner work on tables of this schema alone, so they meet no caller's type or cast.
--   - Every function pins search_path, pg_temp last: no caller's operator or function replaces a built-in one.
--   - Functions that nodes execute bound what a login can store. SQLSTATE 22023 reports what will never be stored, and
--     53400 a bound that the work of ratelimit serve or ratelimit tidy lifts.

-- +goose Up
-- +goose StatementBegin
-- For the role that migrates, in this database: what PUBLIC may do by default can only be revoked for all schemas.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON ROUTINES FROM PUBLIC;

CREATE TABLE rate_limiter.version (
    one         boolean     PRIMARY KEY DEFAULT true CONSTRAINT version_one_row CHECK (one),
    version     bigint      NOT NULL DEFAULT 0, -- of the last transaction with changes
    transaction xid8,                           -- that transaction
    at          timestamptz NOT NULL DEFAULT clock_timestamp(), -- its first change; it was committed after that
    pruned      bigint      NOT NULL DEFAULT 0, -- changes up to it are gone: readers of older ones load all rows
    CONSTRAINT version_pruned CHECK (pruned BETWEEN 0 AND version)
);
INSERT INTO rate_limiter.version DEFAULT VALUES;

-- The keys that a version changed. A reader at version v reads those of later versions and then the rows themselves:
-- the rows that are there have newer values, the others are deleted.
CREATE TABLE rate_limiter.changes (
    version   bigint      NOT NULL,
    number    bigint      GENERATED ALWAYS AS IDENTITY, -- orders the changes of one version
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- tier, tenant, policy, cost, override, candidate, candidate_policy, candidate_tenant
    kind      text        NOT NULL,
    operation text        NOT NULL, -- insert, update, delete
    key       text        NOT NULL, -- of the row: the name of a tier or candidate, a tenant's id, else the row's id
    tenant    text        NOT NULL, -- whom the row is about; empty: not one tenant
    PRIMARY KEY (version, number)
);
CREATE INDEX changes_at ON rate_limiter.changes (at);

CREATE TABLE rate_limiter.audit (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version   bigint      NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    login     text        NOT NULL DEFAULT session_user, -- the database user, whatever the actor is said to be
    reason    text        NOT NULL,
    kind      text        NOT NULL, -- kind to tenant: as in changes; or action, token, webhook
    operation text        NOT NULL,
    key       text        NOT NULL,
    tenant    text        NOT NULL,
    before    jsonb, -- the row; null for an insert
    after     jsonb -- the row; null for a delete
);
CREATE INDEX audit_tenant ON rate_limiter.audit (tenant, id);
CREATE INDEX audit_row ON rate_limiter.audit (kind, key, id);
CREATE INDEX audit_at ON rate_limiter.audit (at);
CREATE INDEX audit_actor ON rate_limiter.audit (actor, id);
-- The last change of a candidate's policies.
CREATE INDEX audit_candidate ON rate_limiter.audit ((coalesce(after, before) ->> 'candidate'), version)
    WHERE kind = 'candidate_policy';

-- Raises an error for a text that may not be the actor of a change. People who read the audit see all of a name: it has
-- no control or format characters (Unicode's Cc and Cf, with those that programs may leave out of what they show), and
-- no space at either end. Only the process that serves the REST API, which may keep answers, writes for its callers:
-- token:NAME, and oidc:NAME for a person whom an identity provider has signed in.
CREATE FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF said ~ ('[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160'
            '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0'
            '\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
            '\U000e0000-\U000e0fff]')
        OR btrim(said) <> '' AND said ~ ('^[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|'
            '[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]$')
    THEN
        RAISE EXCEPTION 'a name has space at an end, or a character that is not seen: %', to_json(said) USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_seen', HINT = 'write the name without it';
    END IF;
    IF lower(said COLLATE "C") SIMILAR TO '(token|oidc):%'
        AND NOT has_table_privilege(session_user, 'rate_limiter.answers', 'INSERT')
    THEN
        RAISE EXCEPTION 'the login % may not write as %', session_user, said USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_token',
            HINT = 'only the process that serves the REST API writes for its callers';
    END IF;
END
$$;
-- Who writes, by SET LOCAL rate_limiter.actor; by default the database user. It runs as its owner, so that a writer
-- needs no right to the check.
CREATE FUNCTION rate_limiter.actor() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text := coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text);
BEGIN
    PERFORM rate_limiter.check_actor(said, 'audit', 'audit_actor');
    RETURN said;
END
$$;
-- Why, by SET LOCAL rate_limiter.reason; by default null.
CREATE FUNCTION rate_limiter.reason() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT nullif(btrim(current_setting('rate_limiter.reason', true)), '')
$$;
-- Checks the columns by which a row says who made or ended it, its arguments. An unchanged value is not checked again.
CREATE FUNCTION rate_limiter.check_names() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    col text;
BEGIN
    PERFORM rate_limiter.check_table('check_names', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    FOREACH col IN ARRAY TG_ARGV LOOP
        IF TG_OP = 'INSERT' OR to_jsonb(NEW) ->> col IS DISTINCT FROM to_jsonb(OLD) ->> col THEN
            PERFORM rate_limiter.check_actor(to_jsonb(NEW) ->> col, TG_TABLE_NAME, TG_TABLE_NAME || '_' || col);
        END IF;
    END LOOP;
    RETURN NEW;
END
$$;
-- The version of this transaction. The first call takes it.
CREATE FUNCTION rate_limiter.take_version() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken bigint;
BEGIN
    SELECT v.version INTO taken FROM rate_limiter.version v WHERE v.transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        UPDATE rate_limiter.version v
        SET version = v.version + 1, transaction = pg_current_xact_id(), at = clock_timestamp()
        RETURNING v.version INTO STRICT taken;
    END IF;
    RETURN taken;
END
$$;
-- Raises an error if a trigger function that runs as its owner is called for a table of another schema.
CREATE FUNCTION rate_limiter.check_table(called text, schema name, "table" name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF schema <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function % is for tables of rate_limiter, not for %.%', called, schema, "table"
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;
-- Raises an error with the SQLSTATE 22023, unless a value is valid.
CREATE FUNCTION rate_limiter.check_value(valid boolean, problem text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF valid IS NOT TRUE THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
-- Waits until no other transaction writes, and keeps others from it until the end of this one.
CREATE FUNCTION rate_limiter.await_turn() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM rate_limiter.version FOR UPDATE;
END
$$;
-- Writers queue before they hold any row of a table: so no two of them wait for each other. To take the turn they need
-- no right but that to write the table.
CREATE FUNCTION rate_limiter.queue() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('queue', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    PERFORM rate_limiter.await_turn();
    RETURN NULL;
END
$$;
-- Arguments: the kind, and the columns of the key and of the tenant. Runs once a statement, so that a bulk change costs
-- one insert. A row whose key an update changed counts as a delete and an insert.
CREATE FUNCTION rate_limiter.record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pairs   text;
    changed boolean;
BEGIN
    PERFORM rate_limiter.check_table('record', TG_TABLE_SCHEMA, TG_TABLE_NAME);
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
-- Records what was done beside the tables, such as resetting a tenant's buckets. It takes no version.
CREATE FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'action', operation, key, tenant,
        details
    FROM rate_limiter.version v;
END
$$;
CREATE FUNCTION rate_limiter.refuse() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of % leaves no record', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = TG_ARGV[0];
END
$$;
CREATE FUNCTION rate_limiter.count_revision() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    RETURN NEW;
END
$$;
-- Puts all of this on a table: every change of it is recorded, an update that changes nothing is none, and the column
-- revision counts the updates of a row (triggers of one event run in the order of their names).
CREATE PROCEDURE rate_limiter.keep_record(target regclass, kind text, key text, tenant text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format($triggers$
        CREATE TRIGGER a_queue BEFORE INSERT OR UPDATE OR DELETE ON %1$s EXECUTE FUNCTION rate_limiter.queue();
        CREATE TRIGGER b_unchanged BEFORE UPDATE ON %1$s
            FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
        CREATE TRIGGER c_revision BEFORE UPDATE ON %1$s FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();
        CREATE TRIGGER d_inserted AFTER INSERT ON %1$s REFERENCING NEW TABLE AS new_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER d_updated AFTER UPDATE ON %1$s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER d_deleted AFTER DELETE ON %1$s REFERENCING OLD TABLE AS old_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER e_truncated BEFORE TRUNCATE ON %1$s
            EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');
    $triggers$, target, kind, key, tenant);
END
$$;
-- The past is not rewritten.
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON rate_limiter.audit
    EXECUTE FUNCTION rate_limiter.refuse('audit rows stay as they are');
-- +goose StatementEnd

-- +goose Down
DROP PROCEDURE rate_limiter.keep_record;
DROP TABLE rate_limiter.audit, rate_limiter.changes, rate_limiter.version;
DROP FUNCTION rate_limiter.actor, rate_limiter.check_actor, rate_limiter.check_names, rate_limiter.check_table,
    rate_limiter.check_value, rate_limiter.reason, rate_limiter.take_version, rate_limiter.await_turn,
    rate_limiter.queue, rate_limiter.record, rate_limiter.record_action, rate_limiter.refuse,
    rate_limiter.count_revision;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON ROUTINES TO PUBLIC;
