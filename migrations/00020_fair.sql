-- How a policy is shared fairly: the weights by which its bucket is divided among tenants. NULL: it is not, as all rows
-- before this migration.
--
-- The column is added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN fair jsonb,
    ADD CONSTRAINT policies_fair CHECK (fair IS NULL OR coalesce(
        jsonb_typeof(fair) = 'object'
        AND octet_length(fair::text) <= 8192
        AND fair::text !~ '(: |, |\[)-?[0-9]+[.]'
        AND coalesce(jsonb_typeof(fair -> 'weights'), 'object') = 'object'
        AND NOT fair @? '$.weights.keyvalue() ? (!(@.value.type() == "number" && @.value >= 1 && @.value <= 1000))'
        AND NOT fair @? '$ ? (exists(@.default)
            && !(@.default.type() == "number" && @.default >= 1 && @.default <= 1000))',
        false)),
    ADD CONSTRAINT policies_fair_scope CHECK (fair IS NULL OR scope IN ('global', 'endpoint')),
    ADD CONSTRAINT policies_fair_algorithm CHECK (fair IS NULL OR algorithm = 'token_bucket'),
    ADD CONSTRAINT policies_fair_soft_only CHECK (fair IS NULL OR NOT soft_only),
    ADD CONSTRAINT policies_fair_window_size CHECK (fair IS NULL OR window_size <= 3599),
    ADD CONSTRAINT policies_fair_limit CHECK (fair IS NULL OR "limit" / window_size >= 10),
    ADD CONSTRAINT policies_fair_burst CHECK (fair IS NULL OR coalesce(burst, "limit") >= "limit" / window_size);

-- +goose Down
ALTER TABLE rate_limiter.policies DROP COLUMN fair;
