-- Top-ups: overrides that add to a calendar limit until its period ends. Several of one subject and policy add up.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.overrides
    ADD amount bigint, -- of a topup, tokens; expires_at is the end of the period
    DROP CONSTRAINT overrides_kind,
    DROP CONSTRAINT overrides_policy_missing,
    DROP CONSTRAINT overrides_policy_unused,
    ADD CONSTRAINT overrides_kind CHECK (kind IN ('custom_limit', 'multiplier', 'ban', 'exempt', 'topup')),
    ADD CONSTRAINT overrides_policy_missing CHECK (kind NOT IN ('custom_limit', 'topup') OR policy <> ''),
    ADD CONSTRAINT overrides_policy_unused CHECK (kind IN ('custom_limit', 'multiplier', 'topup') OR policy = ''),
    ADD CONSTRAINT overrides_amount CHECK (amount BETWEEN 1 AND 1000000000000),
    ADD CONSTRAINT overrides_amount_missing CHECK (kind <> 'topup' OR amount IS NOT NULL),
    ADD CONSTRAINT overrides_amount_unused CHECK (kind = 'topup' OR amount IS NULL),
    ADD CONSTRAINT overrides_topup CHECK (kind <> 'topup'
        OR (tenant <> '' AND ip = '' AND NOT permanent AND starts_at IS NULL AND source = 'commercial'));
ALTER TABLE rate_limiter.override_history ADD amount bigint;
DROP INDEX rate_limiter.overrides_one_per_subject;
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source,
    coalesce(starts_at, '-infinity')) WHERE kind <> 'topup';
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
SELECT set_config('rate_limiter.actor', 'migration', true), set_config('rate_limiter.reason', 'no top-ups', true);
DELETE FROM rate_limiter.overrides WHERE kind = 'topup';
DROP INDEX rate_limiter.overrides_one_per_subject;
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source,
    coalesce(starts_at, '-infinity'));
ALTER TABLE rate_limiter.override_history DROP amount;
ALTER TABLE rate_limiter.overrides
    DROP CONSTRAINT overrides_kind,
    DROP CONSTRAINT overrides_policy_missing,
    DROP CONSTRAINT overrides_policy_unused,
    DROP CONSTRAINT overrides_topup,
    DROP amount,
    ADD CONSTRAINT overrides_kind CHECK (kind IN ('custom_limit', 'multiplier', 'ban', 'exempt')),
    ADD CONSTRAINT overrides_policy_missing CHECK (kind <> 'custom_limit' OR policy <> ''),
    ADD CONSTRAINT overrides_policy_unused CHECK (kind IN ('custom_limit', 'multiplier') OR policy = '');
-- +goose StatementEnd
