-- Budgets of money: policies that count millionths of a US dollar or that match models, and what models cost.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.policies
    ADD unit  text NOT NULL DEFAULT '', -- of limit, burst and reserve: usd for millionths of a US dollar; empty: tokens
    ADD match jsonb, -- the models that it counts; null: it counts all requests
    ADD CONSTRAINT policies_unit CHECK (unit IN ('', 'usd')),
    ADD CONSTRAINT policies_unit_prices CHECK (unit = 'usd' OR settle IS NULL
        OR NOT settle @? '$.sources[*] ? (@.from == "prices")'),
    ADD CONSTRAINT policies_match CHECK (match IS NULL OR coalesce(
        jsonb_typeof(match) = 'object'
        AND octet_length(match::text) <= 2048
        AND match ?| ARRAY['model', 'provider']
        AND NOT match @? '$.* ? (@.type() != "string")'
        AND coalesce(octet_length(match ->> 'model') BETWEEN 1 AND 128 AND match ->> 'model' ~ '^[^*]*[*]?$', true)
        AND coalesce(octet_length(match ->> 'provider') BETWEEN 1 AND 128, true),
        false)),
    ADD CONSTRAINT policies_match_settle CHECK (match IS NULL OR settle IS NOT NULL);

-- What a model costs from an instant on, for all plugin configs of a namespace: entries of the config's table
-- llm.prices that change at run time. Of one pattern the last row that has begun goes before the config's entry.
CREATE TABLE rate_limiter.prices (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace  text        NOT NULL DEFAULT 'default',
    model      text        NOT NULL, -- a name, or the beginning of names with a * behind it
    prompt     bigint      NOT NULL, -- millionths of a US dollar for a million tokens; 0: free
    completion bigint      NOT NULL, -- as prompt
    starts_at  timestamptz NOT NULL DEFAULT clock_timestamp(), -- for requests that arrive from then on
    revision   bigint      NOT NULL DEFAULT 1,
    CONSTRAINT prices_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT prices_model CHECK (model <> '' AND octet_length(model) <= 128 AND model ~ '^[^*]*[*]?$'),
    CONSTRAINT prices_prompt CHECK (prompt BETWEEN 0 AND 1000000000000),
    CONSTRAINT prices_completion CHECK (completion BETWEEN 0 AND 1000000000000),
    CONSTRAINT prices_starts_at CHECK (isfinite(starts_at))
);
CREATE UNIQUE INDEX prices_one_per_start ON rate_limiter.prices (namespace, model, starts_at);
-- As in a config: the record of each reservation carries the prices of both.
CREATE FUNCTION rate_limiter.bound_prices() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM rate_limiter.prices p WHERE p.namespace IN (SELECT n.namespace FROM new_rows n)
            GROUP BY p.namespace HAVING count(DISTINCT p.model) > 256) THEN
        RAISE EXCEPTION 'would be one of more than 256 models with prices in a namespace: delete the prices of others first'
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'prices', COLUMN = 'model',
            CONSTRAINT = 'prices_models';
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER prices_models_inserted AFTER INSERT ON rate_limiter.prices REFERENCING NEW TABLE AS new_rows
    EXECUTE FUNCTION rate_limiter.bound_prices();
CREATE TRIGGER prices_models_updated AFTER UPDATE ON rate_limiter.prices REFERENCING NEW TABLE AS new_rows
    EXECUTE FUNCTION rate_limiter.bound_prices();
CALL rate_limiter.keep_record('rate_limiter.prices', 'price', 'id', 'tenant');
-- prices is a source too, and changes of prices are published; all else stays.
DO $$
BEGIN
    EXECUTE (SELECT 'ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_settle, ADD CONSTRAINT policies_settle '
        || replace(pg_get_constraintdef(oid), '^(header|log|shared)[.][A-Za-z0-9_.*-]+$',
            '^((header|log|shared)[.][A-Za-z0-9_.*-]+|prices)$')
        FROM pg_constraint WHERE conrelid = 'rate_limiter.policies'::regclass AND conname = 'policies_settle');
    EXECUTE replace(pg_get_functiondef('rate_limiter.publish_changes()'::regprocedure),
        '''cost'')', '''cost'', ''price'')');
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DROP TABLE rate_limiter.prices;
DROP FUNCTION rate_limiter.bound_prices;
DELETE FROM rate_limiter.policies
WHERE unit <> '' OR match IS NOT NULL OR settle @? '$.sources[*] ? (@.from == "prices")';
ALTER TABLE rate_limiter.policies
    DROP match, DROP CONSTRAINT policies_unit_prices, DROP unit;
DO $$
BEGIN
    EXECUTE (SELECT 'ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_settle, ADD CONSTRAINT policies_settle '
        || replace(pg_get_constraintdef(oid), '^((header|log|shared)[.][A-Za-z0-9_.*-]+|prices)$',
            '^(header|log|shared)[.][A-Za-z0-9_.*-]+$')
        FROM pg_constraint WHERE conrelid = 'rate_limiter.policies'::regclass AND conname = 'policies_settle');
    EXECUTE replace(pg_get_functiondef('rate_limiter.publish_changes()'::regprocedure),
        '''cost'', ''price'')', '''cost'')');
END
$$;
-- +goose StatementEnd
