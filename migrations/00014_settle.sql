-- How a policy settles: it reserves tokens when a request arrives, and charges what the request really used after the
-- response. NULL: it does not, as all rows before this migration.
--
-- The first check bounds what a row can hold, so that every reader can decode it; nodes check the sources themselves.
--
-- The column is added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN settle jsonb,
    ADD CONSTRAINT policies_settle CHECK (settle IS NULL OR coalesce(
        jsonb_typeof(settle) = 'object'
        AND octet_length(settle::text) <= 8192
        AND settle::text !~ '(: |, |\[)-?[0-9]+[.]'
        AND jsonb_typeof(settle -> 'sources') = 'array'
        AND NOT settle @? '$ ? (@.sources.size() < 1 || @.sources.size() > 8)'
        AND NOT settle @? '$.sources[*].type() ? (@ != "object")'
        AND NOT settle @? '$.sources[*] ? (!(@.from.type() == "string"
            && @.from like_regex "^(header|log|shared)[.][A-Za-z0-9_.*-]+$"))'
        AND NOT settle @? '$.sources[*] ? (exists(@.weight)
            && !(@.weight.type() == "number" && @.weight >= 1 && @.weight <= 1000000))'
        AND NOT settle @? '$ ? (exists(@.reserve)
            && !(@.reserve.type() == "number" && @.reserve >= 1 && @.reserve <= 1000000000000))'
        AND NOT settle @? '$ ? (exists(@.reserve_header)
            && !(@.reserve_header.type() == "string" && @.reserve_header like_regex "^[A-Za-z0-9_-]{1,128}$"))'
        AND NOT settle @? '$ ? (exists(@.reserve_max)
            && !(@.reserve_max.type() == "number" && @.reserve_max >= 1 && @.reserve_max <= 1000000000000))'
        AND (settle ? 'reserve_header') = (settle ? 'reserve_max')
        AND coalesce(jsonb_typeof(settle -> 'refund_on'), 'array') = 'array'
        AND NOT settle @? '$.refund_on[*].type() ? (@ != "number")'
        AND NOT settle @? '$.refund_on[*] ? (@ < 100 || @ > 599)'
        AND NOT settle @? '$ ? (exists(@.timeout)
            && !(@.timeout.type() == "number" && @.timeout >= 1 && @.timeout <= 86400))',
        false)),
    ADD CONSTRAINT policies_settle_algorithm CHECK (settle IS NULL OR algorithm IN ('token_bucket', 'fixed_window')),
    ADD CONSTRAINT policies_settle_soft_only CHECK (settle IS NULL OR NOT soft_only);

-- +goose Down
ALTER TABLE rate_limiter.policies DROP COLUMN settle;
