-- The unit of the amounts of notices and of recent denials: usd for millionths of a US dollar, '' for tokens.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.quota_notices ADD unit text NOT NULL DEFAULT '';
ALTER TABLE rate_limiter.recent_denials ADD unit text;
-- report_recent_denials takes one more column; all else of it stays.
DO $$
BEGIN
    EXECUTE replace(replace(replace(pg_get_functiondef('rate_limiter.report_recent_denials(text, json)'::regprocedure),
        'penalty bigint, request_ids', 'penalty bigint, unit text, request_ids'),
        'penalty, request_ids', 'penalty, unit, request_ids'),
        'f.penalty, f.request_ids', 'f.penalty, left(f.unit, 16), f.request_ids');
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE replace(replace(replace(pg_get_functiondef('rate_limiter.report_recent_denials(text, json)'::regprocedure),
        'penalty bigint, unit text, request_ids', 'penalty bigint, request_ids'),
        'penalty, unit, request_ids', 'penalty, request_ids'),
        'f.penalty, left(f.unit, 16), f.request_ids', 'f.penalty, f.request_ids');
END
$$;
ALTER TABLE rate_limiter.recent_denials DROP unit;
ALTER TABLE rate_limiter.quota_notices DROP unit;
-- +goose StatementEnd
