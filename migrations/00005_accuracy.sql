-- How near to its limit a policy's nodes come together: leased, by tokens that each takes ahead of need, or exact. Empty:
-- the accuracy of the plugin's config, which all policies before this migration have.
--
-- The column is added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN accuracy text NOT NULL DEFAULT '',
    ADD CONSTRAINT policies_accuracy CHECK (accuracy IN ('', 'leased', 'exact'));

-- +goose Down
ALTER TABLE rate_limiter.policies DROP COLUMN accuracy;
