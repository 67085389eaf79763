-- report_denials counts the denials that wait once for each tenant of a report. Postgres computed held where its rows
-- are used, which was once for each denial: a report of a flood read up to 1000 rows for each of its denials.

-- +goose Up
-- As before, but for MATERIALIZED.
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
        RAISE EXCEPTION 'the denials must be an array of at most 1048576 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
        RAISE EXCEPTION 'the denials must be an array of at most 1048576 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
