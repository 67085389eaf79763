-- A recent denial has the ids of its requests, so that an id leads to the limit that denied it, and what that limit was
-- and had left. Nodes of the version before report none of it.

-- +goose Up
ALTER TABLE rate_limiter.recent_denials
    ADD tier           text,
    ADD policy_for     text,   -- what the policy applies to, such as tier gold
    ADD policy_id      bigint, -- null: it is in the plugin's config
    ADD policy_version bigint, -- null: the config alone decided
    ADD capacity       bigint, -- the most that the limit holds
    ADD cost           bigint,
    ADD remaining      bigint, -- null: unknown
    ADD override       bigint, -- that changed the limit, or bans
    ADD penalty        bigint,
    ADD request_ids    text[], -- of the first of the requests
    ADD hidden_ids     text[]; -- of request_ids: those that the tenant may not read
CREATE INDEX recent_denials_requests ON rate_limiter.recent_denials USING gin (request_ids);

-- As before, with the columns above. A row has at most 32 ids, of 64 bytes on average.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.report_recent_denials(node text, denials json) RETURNS integer
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
            count bigint, tenant_count bigint, "user" text, ip text, retry_after bigint, tier text, policy_for text,
            policy_id bigint, policy_version bigint, capacity bigint, cost bigint, remaining bigint, override bigint,
            penalty bigint, request_ids text[], hidden_ids text[]))
            WITH ORDINALITY AS d(event, age, tenant, endpoint, policy, scope, "limit", window_size, reason, shadow, count,
                tenant_count, "user", ip, retry_after, tier, policy_for, policy_id, policy_version, capacity, cost,
                remaining, override, penalty, request_ids, hidden_ids, line)
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND octet_length(d.tenant) <= 1024
            AND octet_length(d.endpoint) <= 1024 AND octet_length(d.policy) <= 256 AND octet_length(d.scope) <= 64
            AND octet_length(d.reason) BETWEEN 1 AND 64 AND octet_length(d."user") <= 1024 AND octet_length(d.ip) <= 1024
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
            f.tenant, f.endpoint, f.policy, f.scope, f."limit", f.window_size, f.reason, f.shadow, f.count, f.tenant_count,
            f."user", f.ip, f.retry_after, f.tier, f.policy_for, f.policy_id, f.policy_version, f.capacity, f.cost,
            f.remaining, f.override, f.penalty, f.request_ids, f.hidden_ids
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

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.report_recent_denials(node text, denials json) RETURNS integer
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
ALTER TABLE rate_limiter.recent_denials
    DROP tier, DROP policy_for, DROP policy_id, DROP policy_version, DROP capacity, DROP cost, DROP remaining,
    DROP override, DROP penalty, DROP request_ids, DROP hidden_ids;
