-- Events for other systems (docs/events.md), which wait here for those that send them. Who makes an event adds it in the
-- transaction of what it reports, so there is an event exactly if that was committed.
--
-- Numbers from a sequence are not in the order of commits: a transaction that takes a lower number may commit later, and
-- a reader that has passed its number would miss it. So a row gets its position after its transaction has committed. The
-- reader that gives positions locks the row of outbox_state, so positions are without gaps, and who sees one sees all
-- before it.

-- +goose Up
CREATE TABLE rate_limiter.outbox (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position bigint,               -- the order of reading; null: not read yet
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event    text        NOT NULL, -- the CloudEvent's id, unique with its source
    source   text        NOT NULL,
    type     text        NOT NULL,
    at       timestamptz NOT NULL, -- the CloudEvent's time
    tenant   text        NOT NULL, -- '': of no tenant
    data     json        NOT NULL,
    CONSTRAINT outbox_event CHECK (octet_length(event) BETWEEN 1 AND 1024),
    CONSTRAINT outbox_source CHECK (octet_length(source) BETWEEN 1 AND 1024),
    CONSTRAINT outbox_type CHECK (octet_length(type) BETWEEN 1 AND 128),
    CONSTRAINT outbox_data CHECK (octet_length(data::text) <= 262144)
);
CREATE UNIQUE INDEX outbox_one_per_event ON rate_limiter.outbox (source, event);
CREATE UNIQUE INDEX outbox_position ON rate_limiter.outbox (position);
CREATE INDEX outbox_new ON rate_limiter.outbox (id) WHERE position IS NULL;
CREATE INDEX outbox_added ON rate_limiter.outbox (added_at);

CREATE TABLE rate_limiter.outbox_state (
    one     boolean PRIMARY KEY DEFAULT true CONSTRAINT outbox_state_one_row CHECK (one),
    last    bigint  NOT NULL DEFAULT 0, -- the last position
    deleted bigint  NOT NULL DEFAULT 0, -- rows up to this position are past their retention
    CONSTRAINT outbox_state_order CHECK (deleted BETWEEN 0 AND last)
);
INSERT INTO rate_limiter.outbox_state DEFAULT VALUES;

-- How far each consumer has read.
CREATE TABLE rate_limiter.outbox_cursors (
    consumer text        PRIMARY KEY CONSTRAINT outbox_cursors_consumer CHECK (octet_length(consumer) BETWEEN 1 AND 64),
    position bigint      NOT NULL, -- the consumer is done with all rows up to this position
    dropped  bigint      NOT NULL DEFAULT 0, -- rows that were past their retention before the consumer had read them
    moved_at timestamptz NOT NULL
);

-- Adds an event for each change of policies, tiers, tenants and overrides, in the transaction of the change.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.publish_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function publish_changes is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
    SELECT 'audit-' || n.id, '/control', 'io.github.tenant-rate-limiting.policy.updated', n.at, n.tenant,
        json_build_object('version', 1, 'policy_version', n.version, 'kind', n.kind, 'operation', n.operation, 'key', n.key,
            'org', n.tenant, 'actor', n.actor, 'reason', n.reason, 'before', n.before, 'after', n.after)
    FROM new_rows n WHERE n.kind IN ('tier', 'tenant', 'policy', 'override') ORDER BY n.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_published AFTER INSERT ON rate_limiter.audit REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.publish_changes();

-- +goose Down
DROP TRIGGER audit_published ON rate_limiter.audit;
DROP FUNCTION rate_limiter.publish_changes;
DROP TABLE rate_limiter.outbox, rate_limiter.outbox_state, rate_limiter.outbox_cursors;
