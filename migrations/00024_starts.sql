-- Overrides that start later. A node enforces one from its start on, by its own clock: it has the row before.
--
-- A program that does not read the column would enforce such a row at once. So the row has a source of its own, scheduled,
-- which these programs find faulty: nodes report the fault and leave the row out, before its start and afterwards.

-- +goose Up
ALTER TABLE rate_limiter.overrides
    ADD COLUMN starts_at timestamptz, -- null: it began when it was made
    ADD CONSTRAINT overrides_starts_at CHECK (isfinite(starts_at)),
    ADD CONSTRAINT overrides_starts_at_end CHECK (starts_at < expires_at),
    ADD CONSTRAINT overrides_starts_at_source CHECK ((starts_at IS NOT NULL) = (source = 'scheduled')),
    DROP CONSTRAINT overrides_source,
    ADD CONSTRAINT overrides_source CHECK (source IN ('commercial', 'detector', 'scheduled'));
ALTER TABLE rate_limiter.override_history ADD COLUMN starts_at timestamptz;

-- Of one kind, for one subject and one policy, there is one override of each source and start.
DROP INDEX rate_limiter.overrides_one_per_subject;
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source,
    coalesce(starts_at, '-infinity'));

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function remember_override is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note, tag,
        starts_at, ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note, tag,
        starts_at, rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- Overrides that have not begun end, and of those in force in one place all but the last to start. They stay in the
-- history. The others lose their start.
SET LOCAL rate_limiter.reason = 'migration starts was reverted';
DELETE FROM rate_limiter.overrides WHERE starts_at > clock_timestamp();
DELETE FROM rate_limiter.overrides o USING rate_limiter.overrides n
    WHERE n.source = 'scheduled' AND o.id <> n.id AND o.source IN ('commercial', 'scheduled')
        AND coalesce(o.starts_at, '-infinity') < n.starts_at AND o.kind = n.kind AND o.tenant = n.tenant
        AND o."user" = n."user" AND o.credential = n.credential AND o.ip = n.ip AND o.tag = n.tag AND o.policy = n.policy
        AND rate_limiter.canonical_endpoint(o.endpoint) = rate_limiter.canonical_endpoint(n.endpoint);
DROP INDEX rate_limiter.overrides_one_per_subject;
UPDATE rate_limiter.overrides SET source = 'commercial', starts_at = NULL WHERE source = 'scheduled';
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function remember_override is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note, tag,
        ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, public_note, tag,
        rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

ALTER TABLE rate_limiter.override_history DROP COLUMN starts_at;
ALTER TABLE rate_limiter.overrides
    DROP CONSTRAINT overrides_source,
    ADD CONSTRAINT overrides_source CHECK (source IN ('commercial', 'detector')),
    DROP COLUMN starts_at; -- with its constraints
