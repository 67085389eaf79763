-- Denials on their way to webhooks. Nodes offer them, and those that no webhook wants are not kept. The sender of webhooks
-- deletes them in the transaction that makes deliveries. They are not in the outbox, where a flood of them would take the
-- room of other events.

-- +goose Up
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

-- Keeps the denials that a webhook wants, and returns how many it has added (-1: no webhook wants any), and the events that
-- are dropped because their tenant has no room. denials is an array of objects with event, at, tenant and data.
--
-- Nodes may execute this and nothing else of webhooks, so what they can store is bounded here: the size of a report, the
-- denials that wait, and those of one tenant. The SQLSTATE 22023 reports what will never be stored, and 53400 a bound that
-- the sender's work lifts.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[])
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

-- +goose Down
DROP FUNCTION rate_limiter.report_denials;
DROP TABLE rate_limiter.webhook_denials;
