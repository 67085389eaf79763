-- Denies policies of the slot candidate, which apply to no request: the REST API and ratelimit write none either. And adds
-- to a node's report since when there are reports of it, so that a node that started after a change does not count in how
-- long the change took.
--
-- The constraint is NOT VALID because older programs could write candidates: such rows stay, and are listed by ratelimit
-- policy list --slot candidate. They can be deleted, or made active; no other change of them is accepted.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD CONSTRAINT policies_slot_active CHECK (slot = 'active') NOT VALID;
ALTER TABLE rate_limiter.nodes ADD COLUMN first_reported_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- +goose Down
ALTER TABLE rate_limiter.nodes DROP COLUMN first_reported_at;
ALTER TABLE rate_limiter.policies DROP CONSTRAINT policies_slot_active;
