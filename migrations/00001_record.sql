-- What every change of the tables of this schema leaves behind: a version, the keys that changed, an audit row, and a
-- notification. All of it is written in the transaction of the change, so it comes with the commit or not at all.
--
-- A transaction with changes gets one version, whatever the number of its statements. Versions have no gaps, and their
-- order is the order of commits: the row below is locked from a transaction's first change to its end. That writes wait
-- for each other is the price; nobody who reads waits.
--
-- What keeps the record runs with the rights of its owner (SECURITY DEFINER): who may write policies has no right to write
-- the audit.

-- +goose Up
CREATE TABLE rate_limiter.version (
    one         boolean     PRIMARY KEY DEFAULT true CONSTRAINT version_one_row CHECK (one),
    version     bigint      NOT NULL DEFAULT 0, -- of the last transaction with changes
    transaction xid8,                           -- that transaction
    at          timestamptz NOT NULL DEFAULT clock_timestamp(), -- its first change; it was committed after that
    pruned      bigint      NOT NULL DEFAULT 0, -- changes up to this version are gone: who holds an older one loads everything
    CONSTRAINT version_pruned CHECK (pruned BETWEEN 0 AND version)
);
INSERT INTO rate_limiter.version DEFAULT VALUES;

-- The keys that a version changed. Who holds version v reads those of later versions and then the rows themselves: the
-- rows that are there now have newer values, those that are not are deleted.
CREATE TABLE rate_limiter.changes (
    version   bigint      NOT NULL,
    number    bigint      GENERATED ALWAYS AS IDENTITY, -- orders the changes of one version
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind      text        NOT NULL, -- tier, tenant, policy, override
    operation text        NOT NULL, -- insert, update, delete
    key       text        NOT NULL, -- of the row: a tier's name, a tenant's id, the id of a policy or an override
    tenant    text        NOT NULL, -- whom the row is about; empty: not one tenant
    PRIMARY KEY (version, number)
);
CREATE INDEX changes_at ON rate_limiter.changes (at);

CREATE TABLE rate_limiter.audit (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version   bigint      NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL,
    login     text        NOT NULL DEFAULT session_user, -- the database user, whoever the actor is said to be
    reason    text        NOT NULL,
    kind      text        NOT NULL, -- kind to tenant: as in changes; or action
    operation text        NOT NULL,
    key       text        NOT NULL,
    tenant    text        NOT NULL,
    before    jsonb, -- the row; null for an insert
    after     jsonb  -- the row; null for a delete
);
CREATE INDEX audit_tenant ON rate_limiter.audit (tenant, id);
CREATE INDEX audit_row ON rate_limiter.audit (kind, key, id);

-- Who writes, by SET LOCAL rate_limiter.actor; the database user when nobody says.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.actor() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text)
$$;
-- +goose StatementEnd

-- Why, by SET LOCAL rate_limiter.reason; null when nobody says.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.reason() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT nullif(btrim(current_setting('rate_limiter.reason', true)), '')
$$;
-- +goose StatementEnd

-- The version of this transaction. The first call takes it, and has the listeners told after the commit.
-- +goose StatementBegin
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
        PERFORM pg_notify('rate_limiter_changes', taken::text);
    END IF;
    RETURN taken;
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION rate_limiter.take_version FROM PUBLIC;

-- Waits until no other transaction writes, and keeps others from it until the end of this one.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.await_turn() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM rate_limiter.version FOR UPDATE;
END
$$;
-- +goose StatementEnd

-- Writers queue before they hold any row of a table: so no two of them wait for each other.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM rate_limiter.await_turn();
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- Arguments: the kind, the column that is the key, the column that names the tenant.
-- Runs once a statement, so that a bulk change costs one insert and not a call per row. A row whose key an update changed
-- counts as a delete and an insert.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.record() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pairs  text := CASE TG_OP
        WHEN 'INSERT' THEN 'SELECT NULL::jsonb AS before, to_jsonb(n) AS after FROM new_rows n'
        WHEN 'DELETE' THEN 'SELECT to_jsonb(o) AS before, NULL::jsonb AS after FROM old_rows o'
        ELSE format('SELECT to_jsonb(o) AS before, to_jsonb(n) AS after FROM old_rows o FULL JOIN new_rows n ON o.%1$I = n.%1$I', TG_ARGV[1])
    END;
    changed boolean;
BEGIN
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

-- Records what somebody did beside the tables, such as resetting a tenant's buckets. It takes no version: nodes need not
-- know.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'action', operation, key, tenant, details
    FROM rate_limiter.version v;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION rate_limiter.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % leaves no record', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = TG_ARGV[0];
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION rate_limiter.count_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Puts all of this on a table: every change of it is recorded, an update that changes nothing is none, and the column
-- revision counts the updates of a row (triggers of one event run in the order of their names).
-- +goose StatementBegin
CREATE PROCEDURE rate_limiter.keep_record(target regclass, kind text, key text, tenant text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER a_queue BEFORE INSERT OR UPDATE OR DELETE ON %s
        EXECUTE FUNCTION rate_limiter.queue()', target);
    EXECUTE format('CREATE TRIGGER b_unchanged BEFORE UPDATE ON %s
        FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', target);
    EXECUTE format('CREATE TRIGGER c_revision BEFORE UPDATE ON %s
        FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision()', target);
    EXECUTE format('CREATE TRIGGER d_inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows
        EXECUTE FUNCTION rate_limiter.record(%L, %L, %L)', target, kind, key, tenant);
    EXECUTE format('CREATE TRIGGER d_updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
        EXECUTE FUNCTION rate_limiter.record(%L, %L, %L)', target, kind, key, tenant);
    EXECUTE format('CREATE TRIGGER d_deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS old_rows
        EXECUTE FUNCTION rate_limiter.record(%L, %L, %L)', target, kind, key, tenant);
    EXECUTE format('CREATE TRIGGER e_truncated BEFORE TRUNCATE ON %s
        EXECUTE FUNCTION rate_limiter.refuse(%L)', target, 'delete the rows: that is recorded');
END
$$;
-- +goose StatementEnd

-- The past is not rewritten.
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON rate_limiter.audit
    EXECUTE FUNCTION rate_limiter.refuse('audit rows stay as they are');

-- +goose Down
DROP PROCEDURE rate_limiter.keep_record;
DROP TABLE rate_limiter.audit, rate_limiter.changes, rate_limiter.version;
DROP FUNCTION rate_limiter.actor, rate_limiter.reason, rate_limiter.take_version, rate_limiter.await_turn, rate_limiter.queue,
    rate_limiter.record, rate_limiter.record_action, rate_limiter.refuse, rate_limiter.count_revision;
