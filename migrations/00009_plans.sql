-- Limits by the calendar and of concurrency: a policy has a window, a period of the calendar, or a longest duration.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.policies
    ALTER window_size DROP NOT NULL,
    ADD period       text NOT NULL DEFAULT '', -- of the calendar; empty: the policy has a window_size or a max_duration
    ADD time_zone    text NOT NULL DEFAULT '', -- IANA name, where periods begin; empty: UTC
    ADD anchor       jsonb, -- where in the calendar they begin; null: at the first midnight
    ADD max_duration bigint, -- seconds that a request counts for at most; concurrency alone has it
    DROP CONSTRAINT policies_algorithm,
    ADD CONSTRAINT policies_algorithm CHECK (algorithm IN ('token_bucket', 'leaky_bucket', 'fixed_window',
        'sliding_window', 'sliding_log', 'concurrency')),
    ADD CONSTRAINT policies_window_size_given CHECK (num_nonnulls(window_size, nullif(period, ''), max_duration) = 1),
    ADD CONSTRAINT policies_limit_concurrency CHECK (algorithm <> 'concurrency' OR "limit" <= 10000),
    ADD CONSTRAINT policies_period CHECK (period IN ('', 'day', 'week', 'month', 'quarter', 'year')),
    ADD CONSTRAINT policies_period_algorithm CHECK (period = '' OR algorithm = 'fixed_window'),
    ADD CONSTRAINT policies_time_zone CHECK (time_zone = ''
        OR (octet_length(time_zone) <= 64 AND time_zone ~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')),
    ADD CONSTRAINT policies_time_zone_period CHECK (time_zone = '' OR period <> ''),
    ADD CONSTRAINT policies_anchor CHECK (anchor IS NULL OR coalesce(
        jsonb_typeof(anchor) = 'object'
        AND octet_length(anchor::text) <= 256
        AND anchor::text !~ '(: )-?[0-9]+[.]'
        AND NOT anchor @? '$ ? (exists(@.month)
            && !(@.month.type() == "number" && @.month >= 1 && @.month <= 12))'
        AND NOT anchor @? '$ ? (exists(@.day) && !(@.day.type() == "number" && @.day >= 1 && @.day <= 31))'
        AND NOT anchor @? '$ ? (exists(@.weekday) && !(@.weekday.type() == "string"
            && @.weekday like_regex "^(mon|tues|wednes|thurs|fri|satur|sun)day$"))'
        AND NOT anchor @? '$ ? (exists(@.hour) && !(@.hour.type() == "number" && @.hour >= 0 && @.hour <= 23))',
        false)),
    ADD CONSTRAINT policies_anchor_period CHECK (anchor IS NULL OR jsonb_typeof(anchor) <> 'object'
        OR anchor - CASE period WHEN 'day' THEN ARRAY['hour'] WHEN 'week' THEN ARRAY['weekday', 'hour']
            WHEN 'month' THEN ARRAY['day', 'hour'] ELSE ARRAY['month', 'day', 'hour'] END = '{}' AND period <> ''),
    ADD CONSTRAINT policies_max_duration CHECK (max_duration BETWEEN 1 AND 86400),
    ADD CONSTRAINT policies_max_duration_algorithm CHECK ((max_duration IS NOT NULL) = (algorithm = 'concurrency')),
    ADD CONSTRAINT policies_soft_concurrency CHECK (algorithm <> 'concurrency'
        OR (soft_threshold_pct IS NULL AND hard_threshold_pct IS NULL AND NOT soft_only)),
    ADD CONSTRAINT policies_accuracy_concurrency CHECK (algorithm <> 'concurrency' OR accuracy <> 'leased'),
    ADD CONSTRAINT policies_cost_concurrency CHECK (algorithm <> 'concurrency' OR cost <= 1);

-- The version of the time zones by which a node counts periods; null: it is of a version without these.
ALTER TABLE rate_limiter.nodes
    ADD zone_data text CONSTRAINT nodes_zone_data CHECK (octet_length(zone_data) <= 64);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
ALTER TABLE rate_limiter.nodes DROP zone_data;
DELETE FROM rate_limiter.policies WHERE window_size IS NULL;
ALTER TABLE rate_limiter.policies
    DROP CONSTRAINT policies_algorithm,
    DROP CONSTRAINT policies_limit_concurrency, DROP CONSTRAINT policies_accuracy_concurrency,
    DROP CONSTRAINT policies_cost_concurrency, DROP CONSTRAINT policies_soft_concurrency,
    DROP CONSTRAINT policies_window_size_given, DROP CONSTRAINT policies_period_algorithm,
    DROP CONSTRAINT policies_max_duration_algorithm,
    DROP period, DROP time_zone, DROP anchor, DROP max_duration,
    ALTER window_size SET NOT NULL,
    ADD CONSTRAINT policies_algorithm CHECK (algorithm IN ('token_bucket', 'leaky_bucket', 'fixed_window',
        'sliding_window', 'sliding_log'));
-- +goose StatementEnd
