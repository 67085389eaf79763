-- Quota notices: a tenant has used 50, 80 or 100 % of a quota. The leader of ratelimit serve writes them beside the
-- events that report them. docs/usage.md describes it.

-- +goose Up
CREATE TABLE rate_limiter.quota_notices (
    tenant       text        NOT NULL,
    policy       text        NOT NULL,
    endpoint     text        NOT NULL, -- of the bucket; '': all endpoints
    window_start timestamptz NOT NULL,
    threshold    smallint    NOT NULL CONSTRAINT quota_notices_threshold CHECK (threshold IN (50, 80, 100)),
    window_end   timestamptz NOT NULL,
    "limit"      bigint      NOT NULL, -- tokens, as in force at the time of the notice
    used         bigint      NOT NULL, -- tokens, at that time
    exhausted_at timestamptz,          -- at the rate of that time; null: not before the window's end
    late         boolean     NOT NULL, -- the threshold may have been reached long before the notice
    noticed_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant, policy, endpoint, window_start, threshold)
);
CREATE INDEX quota_notices_window_end ON rate_limiter.quota_notices (window_end);
CREATE INDEX quota_notices_noticed_at ON rate_limiter.quota_notices (noticed_at);

-- What the leader has still to look at. Unpacking sets changed_since in the transaction that adds the rows, so a leader
-- that comes later finds what the one before has not looked at.
ALTER TABLE rate_limiter.usage_state
    ADD COLUMN changed_since timestamptz, -- the first minute with rows that are not looked at; null: none
    ADD COLUMN checked_at timestamptz;    -- all rows were looked at; null: never

-- +goose Down
ALTER TABLE rate_limiter.usage_state DROP COLUMN changed_since, DROP COLUMN checked_at;
DROP TABLE rate_limiter.quota_notices;
