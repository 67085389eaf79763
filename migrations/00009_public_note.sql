-- What a tenant reads of a policy or an override about it: the reason and the author are for operators alone. Empty:
-- nothing, which is what all rows before this migration have.
--
-- The columns are added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN public_note text NOT NULL DEFAULT '',
    ADD CONSTRAINT policies_public_note CHECK (octet_length(public_note) <= 1024 AND public_note !~ '[[:cntrl:]]');
ALTER TABLE rate_limiter.overrides
    ADD COLUMN public_note text NOT NULL DEFAULT '',
    ADD CONSTRAINT overrides_public_note CHECK (octet_length(public_note) <= 1024 AND public_note !~ '[[:cntrl:]]');
ALTER TABLE rate_limiter.override_history ADD COLUMN public_note text NOT NULL DEFAULT '';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function remember_override is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note,
        ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note,
        rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function remember_override is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision,
        ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision,
        rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
ALTER TABLE rate_limiter.override_history DROP COLUMN public_note;
ALTER TABLE rate_limiter.overrides DROP COLUMN public_note;
ALTER TABLE rate_limiter.policies DROP COLUMN public_note;
