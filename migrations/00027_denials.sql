-- Recent denials that people can read: a bounded sample that nodes report by report_recent_denials, which is all of it that
-- they may use. Where a tenant is denied more often than rows are kept, rows count several denials.
--
-- And report_denials counts the denials that wait once for each tenant of a report, instead of once for each denial.

-- +goose Up
CREATE TABLE rate_limiter.recent_denials (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    login         text        NOT NULL, -- the database user that reported it
    node          text        NOT NULL,
    event         text        NOT NULL, -- the id of the row within its node
    at            timestamptz NOT NULL, -- of the last denial that it counts
    tenant        text        NOT NULL, -- '': none
    endpoint      text        NOT NULL,
    policy        text        NOT NULL, -- '': no policy denied, or several
    scope         text        NOT NULL,
    "limit"       bigint,               -- null: no policy denied
    window_size   bigint,               -- seconds
    reason        text        NOT NULL,
    shadow        boolean     NOT NULL, -- the requests were admitted
    count         bigint      NOT NULL, -- of denials
    tenant_count  bigint      NOT NULL, -- of count: those that the tenant may read
    "user"        text        NOT NULL, -- as in events: a hash, unless the nodes show users
    ip            text        NOT NULL, -- the same
    retry_after   bigint                -- seconds; null: unknown, or no wait helps
);
CREATE UNIQUE INDEX recent_denials_one_per_event ON rate_limiter.recent_denials (node, event);
CREATE INDEX recent_denials_at ON rate_limiter.recent_denials (at, id);
CREATE INDEX recent_denials_tenant ON rate_limiter.recent_denials (tenant, at, id);

-- How many rows each tenant has, so that none of them is counted in a report.
CREATE TABLE rate_limiter.recent_denial_counts (
    tenant text   PRIMARY KEY,
    rows   bigint NOT NULL
);
CREATE INDEX recent_denial_counts_rows ON rate_limiter.recent_denial_counts (rows);

-- Adds rows, and returns how many. denials is an array of objects with the columns event to retry_after; age is how long ago
-- the denial was, in microseconds, so that all instants are the server's. A row that was added before stays as it is.
--
-- Nodes may execute this and nothing else of recent denials, so what a login can store is bounded here: the rows of a
-- report, those of a tenant and those in all, with room for what the keeper has not dropped yet. The SQLSTATE 22023 reports
-- what will never be stored, and 53400 that the table is full.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.report_recent_denials(node text, denials json) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    added integer;
BEGIN
    IF (octet_length(report_recent_denials.node) BETWEEN 1 AND 256) IS NOT TRUE THEN
        RAISE EXCEPTION 'the node must have a name of 1 to 256 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(report_recent_denials.denials::text) <= 1048576
        AND json_typeof(report_recent_denials.denials) = 'array') IS NOT TRUE THEN
        RAISE EXCEPTION 'the denials must be an array of at most 1048576 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF json_array_length(report_recent_denials.denials) > 500 THEN
        RAISE EXCEPTION 'the denials must be at most 500' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (SELECT sum(c.rows) FROM rate_limiter.recent_denial_counts c) >= 250000 THEN
        RAISE EXCEPTION 'there are too many recent denials' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve drops the oldest, with the rights of the role keeper; ratelimit tidy does too';
    END IF;
    WITH offered AS (
        SELECT d.*, row_number() OVER (PARTITION BY d.tenant ORDER BY d.line) AS place
        FROM ROWS FROM (json_to_recordset(report_recent_denials.denials) AS (event text, age bigint, tenant text,
            endpoint text, policy text, scope text, "limit" bigint, window_size bigint, reason text, shadow boolean,
            count bigint, tenant_count bigint, "user" text, ip text, retry_after bigint))
            WITH ORDINALITY AS d(event, age, tenant, endpoint, policy, scope, "limit", window_size, reason, shadow, count,
                tenant_count, "user", ip, retry_after, line)
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND octet_length(d.tenant) <= 1024
            AND octet_length(d.endpoint) <= 1024 AND octet_length(d.policy) <= 256 AND octet_length(d.scope) <= 64
            AND octet_length(d.reason) BETWEEN 1 AND 64 AND octet_length(d."user") <= 1024 AND octet_length(d.ip) <= 1024
            AND d.age IS NOT NULL AND d.shadow IS NOT NULL AND d.count BETWEEN 1 AND 1000000000000
            AND d.tenant_count BETWEEN 0 AND d.count
            AND least(d."limit", d.window_size, d.retry_after, 0) = 0
    ), fits AS (
        SELECT o.* FROM offered o LEFT JOIN rate_limiter.recent_denial_counts c ON c.tenant = o.tenant
        WHERE o.place + coalesce(c.rows, 0) <= 6000
    ), stored AS (
        INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
            window_size, reason, shadow, count, tenant_count, "user", ip, retry_after)
        SELECT session_user, report_recent_denials.node, f.event,
            now - least(greatest(f.age, 0), 3600000000) * interval '1 microsecond',
            f.tenant, f.endpoint, f.policy, f.scope, f."limit", f.window_size, f.reason, f.shadow, f.count, f.tenant_count,
            f."user", f.ip, f.retry_after
        FROM fits f
        ORDER BY f.line
        ON CONFLICT (node, event) DO NOTHING RETURNING tenant
    ), counted AS (
        INSERT INTO rate_limiter.recent_denial_counts AS c (tenant, rows)
        SELECT s.tenant, count(*) FROM stored s GROUP BY 1 ORDER BY 1 -- in one order, so that no two reports deadlock
        ON CONFLICT (tenant) DO UPDATE SET rows = c.rows + excluded.rows
    ) SELECT count(*) INTO added FROM stored;
    RETURN added;
END
$$;
-- +goose StatementEnd

-- Drops at most so many rows, the oldest first: those older than 7 days, those of a tenant with more than 5000, and those
-- beyond 200000 in all. It returns how many it has dropped; fewer than it may means that none is left to drop.
-- +goose StatementBegin
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
            SELECT c.tenant, c.rows FROM rate_limiter.recent_denial_counts c WHERE c.rows > 5000 ORDER BY c.rows DESC LIMIT 100
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

-- As before, but for the common table expression held.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    denial  CONSTANT text := 'io.github.tenant-rate-limiting.denial';
    waiting bigint;
BEGIN
    IF (octet_length(report_denials.node) BETWEEN 1 AND 256) IS NOT TRUE THEN
        RAISE EXCEPTION 'the node must have a name of 1 to 256 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(report_denials.denials::text) <= 1048576 AND json_typeof(report_denials.denials) = 'array')
        IS NOT TRUE THEN
        RAISE EXCEPTION 'the denials must be an array of at most 1048576 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT EXISTS (SELECT FROM rate_limiter.webhooks w WHERE w.enabled AND (w.types = '{}' OR denial = ANY (w.types))) THEN
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
        FROM ROWS FROM (json_to_recordset(report_denials.denials) AS (event text, at timestamptz, tenant text, data json))
            WITH ORDINALITY AS r(event, at, tenant, data, line)
    ), held AS (
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
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    denial  CONSTANT text := 'io.github.tenant-rate-limiting.denial';
    waiting bigint;
BEGIN
    IF (octet_length(report_denials.node) BETWEEN 1 AND 256) IS NOT TRUE THEN
        RAISE EXCEPTION 'the node must have a name of 1 to 256 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(report_denials.denials::text) <= 1048576 AND json_typeof(report_denials.denials) = 'array')
        IS NOT TRUE THEN
        RAISE EXCEPTION 'the denials must be an array of at most 1048576 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT EXISTS (SELECT FROM rate_limiter.webhooks w WHERE w.enabled AND (w.types = '{}' OR denial = ANY (w.types))) THEN
        kept := -1;
        RETURN;
    END IF;
    SELECT count(*) INTO waiting FROM (SELECT FROM rate_limiter.webhook_denials LIMIT 20000) first;
    IF waiting >= 20000 THEN
        RAISE EXCEPTION 'too many denials wait to be sent to webhooks' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve sends them, with the rights of the role keeper';
    END IF;
    WITH offered AS (
        SELECT r.*, row_number() OVER (PARTITION BY r.tenant) AS place
        FROM json_to_recordset(report_denials.denials) AS r(event text, at timestamptz, tenant text, data json)
    ), wanted AS (
        SELECT d.*,
            d.place + (SELECT count(*) FROM rate_limiter.webhook_denials w WHERE w.tenant = d.tenant) <= 1000 AS fits
        FROM offered d
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND d.at IS NOT NULL AND octet_length(d.tenant) <= 1024
            AND json_typeof(d.data) = 'object' AND octet_length(d.data::text) <= 65536
            AND EXISTS (
                SELECT FROM rate_limiter.webhooks w
                WHERE w.enabled AND w.org IN ('', d.tenant) AND (w.types = '{}' OR denial = ANY (w.types)))
    ), added AS (
        INSERT INTO rate_limiter.webhook_denials (login, node, event, at, tenant, data)
        SELECT session_user, report_denials.node, d.event, d.at, d.tenant, d.data FROM wanted d WHERE d.fits
        ON CONFLICT DO NOTHING RETURNING 1
    ) SELECT (SELECT count(*) FROM added), (
            SELECT array_agg(d.event) FROM wanted d WHERE NOT d.fits AND NOT EXISTS (
                SELECT FROM rate_limiter.webhook_denials w WHERE w.node = report_denials.node AND w.event = d.event)
        ) INTO kept, dropped;
END
$$;
-- +goose StatementEnd
DROP FUNCTION rate_limiter.report_recent_denials, rate_limiter.drop_recent_denials;
DROP TABLE rate_limiter.recent_denials, rate_limiter.recent_denial_counts;
