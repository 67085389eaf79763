-- What a policy is for, in the words of whoever runs the API: clients read it where the policy denies their requests. Empty:
-- nothing, which is what all rows before this migration have.
--
-- The column is added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN description text NOT NULL DEFAULT '',
    ADD CONSTRAINT policies_description CHECK (octet_length(description) <= 200 AND description !~ '[[:cntrl:]]');

-- +goose Down
ALTER TABLE rate_limiter.policies DROP COLUMN description;
