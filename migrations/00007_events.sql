-- Events for other systems, webhooks and recent denials (docs/events.md, docs/webhooks.md, docs/control-api.md). An
-- event is added to the outbox in the transaction of what it reports, so it is there exactly if that was committed.
--
-- Numbers from a sequence are not in the order of commits: a transaction that takes a lower number may commit later,
-- and a reader that has passed its number would miss it. So a row gets its position after its transaction has
-- committed. The reader that gives positions locks the row of outbox_state, so positions are without gaps, and a reader
-- that sees one sees all before it.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.outbox (
    id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position bigint,               -- the order of reading; null: not read yet
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event    text        NOT NULL, -- the CloudEvent's id, unique with its source
    source   text        NOT NULL CONSTRAINT outbox_source CHECK (octet_length(source) BETWEEN 1 AND 1024),
    type     text        NOT NULL CONSTRAINT outbox_type CHECK (octet_length(type) BETWEEN 1 AND 128),
    at       timestamptz NOT NULL, -- the CloudEvent's time
    tenant   text        NOT NULL, -- '': of no tenant
    data     json        NOT NULL CONSTRAINT outbox_data CHECK (octet_length(data::text) <= 262144),
    CONSTRAINT outbox_event CHECK (octet_length(event) BETWEEN 1 AND 1024)
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
-- Adds an event for each change of policies, tiers, tenants, overrides and costs, in the transaction of the change.
CREATE FUNCTION rate_limiter.publish_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('publish_changes', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
    SELECT 'audit-' || n.id, '/control', 'io.github.tenant-rate-limiting.policy.updated', n.at, n.tenant,
        json_build_object('version', 1, 'policy_version', n.version, 'kind', n.kind, 'operation', n.operation,
            'key', n.key, 'org', n.tenant, 'actor', n.actor, 'reason', n.reason, 'before', n.before, 'after', n.after)
    FROM new_rows n WHERE n.kind IN ('tier', 'tenant', 'policy', 'override', 'cost') ORDER BY n.id;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_published AFTER INSERT ON rate_limiter.audit REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.publish_changes();

-- Webhooks: who subscribes to which events, the secrets that sign them, and what is to be delivered. The leader of
-- ratelimit serve sends.
CREATE TABLE rate_limiter.webhooks (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org        text        NOT NULL DEFAULT '', -- only events of this tenant, as it may read them; '': all events
    url        text        NOT NULL,
    types      text[]      NOT NULL DEFAULT '{}', -- of events; empty: all
    enabled    boolean     NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text        NOT NULL,
    -- What the sender keeps.
    disabled_for  text        NOT NULL DEFAULT '', -- why the sender has disabled it; '': it has not
    failing_since timestamptz, -- all tries since then have failed; null: the last one has not
    failures      bigint      NOT NULL DEFAULT 0,  -- tries since then
    last_error    text        NOT NULL DEFAULT '', -- of the last try; '': it succeeded, or there was none
    delivered_at  timestamptz, -- the last success
    hold_until    timestamptz, -- the receiver wants nothing before
    dropped       bigint      NOT NULL DEFAULT 0,  -- events that did not fit the queue, or were given up
    CONSTRAINT webhooks_org CHECK (octet_length(org) <= 128),
    CONSTRAINT webhooks_url CHECK (octet_length(url) <= 2048 AND url ~ '^https?://[^[:space:][:cntrl:]]+$'),
    CONSTRAINT webhooks_types CHECK (cardinality(types) <= 16),
    CONSTRAINT webhooks_created_by CHECK (created_by ~ '\S' AND octet_length(created_by) <= 256),
    CONSTRAINT webhooks_disabled_for CHECK (octet_length(disabled_for) <= 1024 AND (NOT enabled OR disabled_for = '')),
    CONSTRAINT webhooks_last_error CHECK (octet_length(last_error) <= 1024)
);
CREATE INDEX webhooks_org_id ON rate_limiter.webhooks (org, id);

-- Only the sender reads secrets. Nodes read nothing of webhooks, so no snapshot of theirs has any.
CREATE TABLE rate_limiter.webhook_secrets (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook     bigint      NOT NULL REFERENCES rate_limiter.webhooks ON DELETE CASCADE,
    secret      bytea       NOT NULL CONSTRAINT webhook_secrets_secret CHECK (octet_length(secret) BETWEEN 24 AND 64),
    signs_until timestamptz -- null: it is the current one
);
CREATE INDEX webhook_secrets_webhook ON rate_limiter.webhook_secrets (webhook);

CREATE TABLE rate_limiter.webhook_deliveries (
    id         text        PRIMARY KEY, -- the header webhook-id, the same for all tries
    webhook    bigint      NOT NULL REFERENCES rate_limiter.webhooks ON DELETE CASCADE,
    events     integer     NOT NULL,
    body       text        NOT NULL, -- '' when it has ended
    state      text        NOT NULL DEFAULT 'waiting', -- delivered, failed: it was given up
    created_at timestamptz NOT NULL,
    due_at     timestamptz NOT NULL, -- the next try
    tries      integer     NOT NULL DEFAULT 0,
    status     integer     NOT NULL DEFAULT 0, -- of the last answer; 0: there was none
    error      text        NOT NULL DEFAULT '', -- of the last try
    tried_at   timestamptz, -- the last try
    CONSTRAINT webhook_deliveries_id CHECK (octet_length(id) BETWEEN 1 AND 64),
    CONSTRAINT webhook_deliveries_body CHECK (octet_length(body) <= 1048576),
    CONSTRAINT webhook_deliveries_state CHECK (state IN ('waiting', 'delivered', 'failed')),
    CONSTRAINT webhook_deliveries_error CHECK (octet_length(error) <= 1024)
);
CREATE INDEX webhook_deliveries_due ON rate_limiter.webhook_deliveries (webhook, due_at) WHERE state = 'waiting';
CREATE INDEX webhook_deliveries_created ON rate_limiter.webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_webhook ON rate_limiter.webhook_deliveries (webhook, created_at);

-- Records what people change, and that the sender has disabled a webhook.
CREATE FUNCTION rate_limiter.record_webhook() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of rate_limiter.webhooks;
BEGIN
    PERFORM rate_limiter.check_table('record_webhook', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    of := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', lower(TG_OP), of.id, of.org,
        CASE WHEN TG_OP <> 'INSERT'
            THEN jsonb_build_object('url', OLD.url, 'types', OLD.types, 'enabled', OLD.enabled) END,
        CASE WHEN TG_OP <> 'DELETE'
            THEN jsonb_build_object('url', NEW.url, 'types', NEW.types, 'enabled', NEW.enabled) END
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;
-- A new secret is a rotation, also where its webhook is new.
CREATE FUNCTION rate_limiter.record_webhook_secret() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('record_webhook_secret', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', 'secret', w.id, w.org
    FROM rate_limiter.version v, rate_limiter.webhooks w WHERE w.id = NEW.webhook;
    RETURN NULL;
END
$$;
CREATE TRIGGER webhooks_recorded AFTER INSERT OR DELETE ON rate_limiter.webhooks
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook();
CREATE TRIGGER webhooks_updated AFTER UPDATE ON rate_limiter.webhooks
    FOR EACH ROW WHEN ((OLD.url, OLD.types, OLD.enabled) IS DISTINCT FROM (NEW.url, NEW.types, NEW.enabled))
    EXECUTE FUNCTION rate_limiter.record_webhook();
CREATE TRIGGER webhooks_names BEFORE INSERT OR UPDATE OF created_by ON rate_limiter.webhooks
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('created_by');
CREATE TRIGGER webhook_secrets_recorded AFTER INSERT ON rate_limiter.webhook_secrets
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook_secret();

-- Denials on their way to webhooks. Those that no webhook wants are not kept. The sender deletes them in the
-- transaction that makes deliveries. They are not in the outbox, where a flood of them would take the room of events.
CREATE TABLE rate_limiter.webhook_denials (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    login       text        NOT NULL, -- the database user that reported it
    node        text        NOT NULL,
    event       text        NOT NULL, -- the id of the event within its node
    at          timestamptz NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant      text        NOT NULL,
    data        json        NOT NULL
);
CREATE UNIQUE INDEX webhook_denials_one_per_event ON rate_limiter.webhook_denials (node, event);
CREATE INDEX webhook_denials_tenant ON rate_limiter.webhook_denials (tenant);

-- Keeps the denials that a webhook wants, and returns how many it has added (-1: no webhook wants any), and the events
-- that are dropped because their tenant has no room. denials is an array of objects with event, at, tenant and data.
-- Bounded are the size of a report, the denials that wait, and those of one tenant. held is MATERIALIZED so that the
-- denials that wait are counted once for each tenant of a report, and not once for each denial.
CREATE FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    denial  CONSTANT text := 'io.github.tenant-rate-limiting.denial';
    waiting bigint;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_denials.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(octet_length(report_denials.denials::text) <= 1048576
            AND json_typeof(report_denials.denials) = 'array', 'the denials must be an array of at most 1048576 bytes');
    IF NOT EXISTS (SELECT FROM rate_limiter.webhooks w
        WHERE w.enabled AND (w.types = '{}' OR denial = ANY (w.types))) THEN
        kept := -1;
        RETURN;
    END IF;
    SELECT count(*) INTO waiting FROM (SELECT FROM rate_limiter.webhook_denials LIMIT 20000) first;
    IF waiting >= 20000 THEN
        RAISE EXCEPTION 'too many denials wait to be sent to webhooks' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve sends them, with the rights of the role keeper';
    END IF;
    WITH offered AS (
        SELECT r.*, row_number() OVER (PARTITION BY r.tenant ORDER BY r.line) AS place
        FROM ROWS FROM (json_to_recordset(report_denials.denials)
            AS (event text, at timestamptz, tenant text, data json))
            WITH ORDINALITY AS r(event, at, tenant, data, line)
    ), held AS MATERIALIZED (
        SELECT o.tenant, (
            SELECT count(*) FROM (SELECT FROM rate_limiter.webhook_denials w WHERE w.tenant = o.tenant LIMIT 1000) first
        ) AS rows
        FROM (SELECT DISTINCT d.tenant FROM offered d) o
    ), wanted AS (
        SELECT d.*, d.place + h.rows <= 1000 AS fits
        FROM offered d JOIN held h ON h.tenant = d.tenant
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND d.at IS NOT NULL AND octet_length(d.tenant) <= 1024
            AND json_typeof(d.data) = 'object' AND octet_length(d.data::text) <= 65536
            AND EXISTS (
                SELECT FROM rate_limiter.webhooks w
                WHERE w.enabled AND w.org IN ('', d.tenant) AND (w.types = '{}' OR denial = ANY (w.types)))
    ), added AS (
        INSERT INTO rate_limiter.webhook_denials (login, node, event, at, tenant, data)
        SELECT session_user, report_denials.node, d.event, d.at, d.tenant, d.data FROM wanted d WHERE d.fits
        ORDER BY d.line -- they are sent in the order of their ids
        ON CONFLICT DO NOTHING RETURNING 1
    ) SELECT (SELECT count(*) FROM added), (
            SELECT array_agg(d.event ORDER BY d.line) FROM wanted d WHERE NOT d.fits AND NOT EXISTS (
                SELECT FROM rate_limiter.webhook_denials w WHERE w.node = report_denials.node AND w.event = d.event)
        ) INTO kept, dropped;
END
$$;
-- Recent denials that people can read: a sample. Where a tenant is denied more often than rows are kept, rows count
-- several denials. The ids of requests lead to the limit that denied them, and what that limit was and had left.
CREATE TABLE rate_limiter.recent_denials (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    login          text        NOT NULL, -- the database user that reported it
    node           text        NOT NULL,
    event          text        NOT NULL, -- the id of the row within its node
    at             timestamptz NOT NULL, -- of the last denial that it counts
    tenant         text        NOT NULL, -- '': none
    endpoint       text        NOT NULL,
    policy         text        NOT NULL, -- '': no policy denied, or several
    scope          text        NOT NULL,
    "limit"        bigint,               -- null: no policy denied
    window_size    bigint,               -- seconds
    reason         text        NOT NULL,
    shadow         boolean     NOT NULL, -- the requests were admitted
    count          bigint      NOT NULL, -- of denials
    tenant_count   bigint      NOT NULL, -- of count: those that the tenant may read
    "user"         text        NOT NULL, -- as in events: a hash, unless the nodes show users
    ip             text        NOT NULL, -- the same
    retry_after    bigint,               -- seconds; null: unknown, or no wait helps
    tier           text,
    policy_for     text,   -- what the policy applies to, such as tier gold
    policy_id      bigint, -- null: it is in the plugin's config
    policy_version bigint, -- null: the config alone decided
    capacity       bigint, -- the most that the limit holds
    cost           bigint,
    remaining      bigint, -- null: unknown
    override       bigint, -- that changed the limit, or bans
    penalty        bigint,
    request_ids    text[], -- of the first of the requests
    hidden_ids     text[] -- of request_ids: those that the tenant may not read
);
CREATE UNIQUE INDEX recent_denials_one_per_event ON rate_limiter.recent_denials (node, event);
CREATE INDEX recent_denials_at ON rate_limiter.recent_denials (at, id);
CREATE INDEX recent_denials_tenant ON rate_limiter.recent_denials (tenant, at, id);
CREATE INDEX recent_denials_requests ON rate_limiter.recent_denials USING gin (request_ids);
-- Denials by a policy or at an endpoint that denies seldom.
CREATE INDEX recent_denials_policy ON rate_limiter.recent_denials (policy, at, id);
CREATE INDEX recent_denials_endpoint ON rate_limiter.recent_denials (endpoint, at, id);

-- How many rows each tenant has, so that none of them is counted in a report.
CREATE TABLE rate_limiter.recent_denial_counts (
    tenant text   PRIMARY KEY,
    rows   bigint NOT NULL
);
CREATE INDEX recent_denial_counts_rows ON rate_limiter.recent_denial_counts (rows);

-- Adds rows, and returns how many. denials is an array of objects with the columns event to hidden_ids; age is how long
-- ago the denial was, in microseconds, so that all instants are the server's. A row that was added before stays as it
-- is. Bounded are the rows of a report, those of a tenant and those in all, with room for what the keeper has not
-- dropped yet, and the ids of a row: 32, of 64 bytes on average.
CREATE FUNCTION rate_limiter.report_recent_denials(node text, denials json) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    added integer;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_recent_denials.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(octet_length(report_recent_denials.denials::text) <= 1048576
            AND json_typeof(report_recent_denials.denials) = 'array',
            'the denials must be an array of at most 1048576 bytes');
    PERFORM rate_limiter.check_value(json_array_length(report_recent_denials.denials) <= 500,
        'the denials must be at most 500');
    IF (SELECT sum(c.rows) FROM rate_limiter.recent_denial_counts c) >= 250000 THEN
        RAISE EXCEPTION 'there are too many recent denials' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve drops the oldest, with the rights of the role keeper; ratelimit tidy does too';
    END IF;
    WITH offered AS (
        SELECT d.*, row_number() OVER (PARTITION BY d.tenant ORDER BY d.ordinality) AS place
        FROM ROWS FROM (json_to_recordset(report_recent_denials.denials) AS (event text, age bigint, tenant text,
            endpoint text, policy text, scope text, "limit" bigint, window_size bigint, reason text, shadow boolean,
            count bigint, tenant_count bigint, "user" text, ip text, retry_after bigint, tier text, policy_for text,
            policy_id bigint, policy_version bigint, capacity bigint, cost bigint, remaining bigint, override bigint,
            penalty bigint, request_ids text[], hidden_ids text[]))
            WITH ORDINALITY AS d
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND octet_length(d.tenant) <= 1024
            AND octet_length(d.endpoint) <= 1024 AND octet_length(d.policy) <= 256 AND octet_length(d.scope) <= 64
            AND octet_length(d.reason) BETWEEN 1 AND 64
            AND octet_length(d."user") <= 1024 AND octet_length(d.ip) <= 1024
            AND d.age IS NOT NULL AND d.shadow IS NOT NULL AND d.count BETWEEN 1 AND 1000000000000
            AND d.tenant_count BETWEEN 0 AND d.count
            AND least(d."limit", d.window_size, d.retry_after, d.policy_id, d.policy_version, d.capacity, d.cost,
                d.remaining, d.override, d.penalty, 0) = 0
            AND coalesce(octet_length(d.tier), 0) <= 1024 AND coalesce(octet_length(d.policy_for), 0) <= 1024
            AND greatest(cardinality(d.request_ids), cardinality(d.hidden_ids), 0) <= 32
            AND octet_length(concat(array_to_string(d.request_ids, ''), array_to_string(d.hidden_ids, ''))) <= 4096
    ), fits AS (
        SELECT o.* FROM offered o LEFT JOIN rate_limiter.recent_denial_counts c ON c.tenant = o.tenant
        WHERE o.place + coalesce(c.rows, 0) <= 6000
    ), stored AS (
        INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
            window_size, reason, shadow, count, tenant_count, "user", ip, retry_after, tier, policy_for, policy_id,
            policy_version, capacity, cost, remaining, override, penalty, request_ids, hidden_ids)
        SELECT session_user, report_recent_denials.node, f.event,
            now - least(greatest(f.age, 0), 3600000000) * interval '1 microsecond',
            f.tenant, f.endpoint, f.policy, f.scope, f."limit", f.window_size, f.reason, f.shadow, f.count,
            f.tenant_count, f."user", f.ip, f.retry_after, f.tier, f.policy_for, f.policy_id, f.policy_version,
            f.capacity, f.cost, f.remaining, f.override, f.penalty, f.request_ids, f.hidden_ids
        FROM fits f
        ORDER BY f.ordinality
        ON CONFLICT (node, event) DO NOTHING RETURNING tenant
    ), counted AS (
        INSERT INTO rate_limiter.recent_denial_counts AS c (tenant, rows)
        SELECT s.tenant, count(*) FROM stored s GROUP BY 1 ORDER BY 1 -- in one order, so that no two reports deadlock
        ON CONFLICT (tenant) DO UPDATE SET rows = c.rows + excluded.rows
    ) SELECT count(*) INTO added FROM stored;
    RETURN added;
END
$$;
-- Drops at most so many rows, the oldest first: those older than 7 days, those of a tenant with more than 5000, and
-- those beyond 200000 in all. It returns how many it has dropped; fewer than it may means that none is left to drop.
CREATE FUNCTION rate_limiter.drop_recent_denials(most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    dropped integer;
    batch   CONSTANT integer := least(greatest(drop_recent_denials.most, 0), 10000);
BEGIN
    WITH old AS (
        (SELECT d.id FROM rate_limiter.recent_denials d
        WHERE d.at < clock_timestamp() - interval '7 days' ORDER BY d.at, d.id LIMIT batch)
        UNION
        (SELECT o.id FROM (
            SELECT c.tenant, c.rows FROM rate_limiter.recent_denial_counts c WHERE c.rows > 5000
            ORDER BY c.rows DESC LIMIT 100
        ) c, LATERAL (
            SELECT d.id FROM rate_limiter.recent_denials d WHERE d.tenant = c.tenant
            ORDER BY d.at, d.id LIMIT least(c.rows - 5000, batch)
        ) o)
        UNION
        (SELECT d.id FROM rate_limiter.recent_denials d ORDER BY d.at, d.id
        LIMIT least(batch, greatest(0, (SELECT sum(c.rows) FROM rate_limiter.recent_denial_counts c) - 200000)))
    ), gone AS (
        DELETE FROM rate_limiter.recent_denials d WHERE d.id IN (SELECT o.id FROM old o LIMIT batch) RETURNING d.tenant
    ), sums AS (
        SELECT g.tenant, count(*) AS rows FROM gone g GROUP BY 1
    ), locked AS (
        SELECT c.tenant FROM rate_limiter.recent_denial_counts c JOIN sums s USING (tenant) ORDER BY 1 FOR UPDATE OF c
    ), counted AS (
        UPDATE rate_limiter.recent_denial_counts c SET rows = c.rows - s.rows FROM sums s JOIN locked l USING (tenant)
        WHERE c.tenant = s.tenant
    ) SELECT count(*) INTO dropped FROM gone;
    DELETE FROM rate_limiter.recent_denial_counts c WHERE c.rows <= 0;
    RETURN dropped;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER audit_published ON rate_limiter.audit;
DROP FUNCTION rate_limiter.publish_changes, rate_limiter.report_denials, rate_limiter.report_recent_denials,
    rate_limiter.drop_recent_denials;
DROP TABLE rate_limiter.outbox, rate_limiter.outbox_state, rate_limiter.outbox_cursors, rate_limiter.webhook_deliveries,
    rate_limiter.webhook_secrets, rate_limiter.webhooks, rate_limiter.webhook_denials, rate_limiter.recent_denials,
    rate_limiter.recent_denial_counts;
DROP FUNCTION rate_limiter.record_webhook, rate_limiter.record_webhook_secret;
