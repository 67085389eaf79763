-- Abuse detection: what the leader remembers of tenants, and the overrides that it makes. docs/abuse.md describes it.
--
-- The leader cannot write overrides. It executes penalize and lift_penalty, which make and end overrides of the abuse
-- detector only. So a login of the leader cannot make an exemption, raise a limit, or end what an operator made.

-- +goose Up
-- Denials by tenant and minute, of the last hour. Of the sketches of names, HyperLogLog, plugin/observe/usage has the form.
CREATE TABLE rate_limiter.abuse_denials (
    at          timestamptz NOT NULL,
    tenant      text        NOT NULL,
    limited     bigint      NOT NULL, -- requests that limits of the tenant denied
    penalized   bigint      NOT NULL, -- of these, only limits that a penalty has lowered
    unavailable bigint      NOT NULL, -- requests that were denied only because Redis was away
    users       bytea       NOT NULL,
    addresses   bytea       NOT NULL,
    credentials bytea       NOT NULL,
    PRIMARY KEY (at, tenant)
);

-- What is remembered of a tenant: the state of plugin/leader/abuse.
CREATE TABLE rate_limiter.abuse_tenants (
    tenant         text        PRIMARY KEY
        CONSTRAINT abuse_tenants_tenant CHECK (octet_length(tenant) BETWEEN 1 AND 128),
    state          jsonb       NOT NULL,
    step           text        NOT NULL GENERATED ALWAYS AS (state ->> 'step') STORED,
    mode           text        NOT NULL, -- shadow: the step has no effect
    reason         text        NOT NULL DEFAULT '', -- of the step
    scored_at      timestamptz NOT NULL, -- the end of the last minute that was scored
    forgiven_until timestamptz,
    override       bigint,      -- its penalty
    override_until timestamptz, -- when that expires
    CONSTRAINT abuse_tenants_step CHECK (step IN ('none', 'warn', 'half', 'tenth', 'ban_5m', 'ban_1h')),
    CONSTRAINT abuse_tenants_mode CHECK (mode IN ('shadow', 'enforce'))
);
CREATE INDEX abuse_tenants_on_ladder ON rate_limiter.abuse_tenants (tenant)
    WHERE step <> 'none' OR override IS NOT NULL;
CREATE INDEX abuse_tenants_scored ON rate_limiter.abuse_tenants (scored_at);

-- The moves on the ladder, of the last 30 days.
CREATE TABLE rate_limiter.abuse_steps (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL,
    tenant    text        NOT NULL,
    from_step text        NOT NULL,
    to_step   text        NOT NULL,
    mode      text        NOT NULL,
    reason    text        NOT NULL
);
CREATE INDEX abuse_steps_tenant ON rate_limiter.abuse_steps (tenant, id);
CREATE INDEX abuse_steps_at ON rate_limiter.abuse_steps (at);

-- How far minutes are scored. A transaction that changes states locks the row first.
CREATE TABLE rate_limiter.abuse_state (
    one          boolean     PRIMARY KEY DEFAULT true CONSTRAINT abuse_state_one_row CHECK (one),
    scored_until timestamptz NOT NULL
);
INSERT INTO rate_limiter.abuse_state (scored_until) VALUES (date_trunc('minute', clock_timestamp()));

-- Ends the penalties of a tenant, '' of all, and returns how many there were. Only those of the abuse detector.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.lift_penalty(tenant text, reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    lifted bigint;
BEGIN
    PERFORM set_config('rate_limiter.actor', 'abuse detector', true),
        set_config('rate_limiter.reason', left(lift_penalty.reason, 1024), true);
    DELETE FROM rate_limiter.overrides o
    WHERE o.source = 'detector' AND o.author = 'abuse detector' AND lift_penalty.tenant IN ('', o.tenant);
    GET DIAGNOSTICS lifted = ROW_COUNT;
    RETURN lifted;
END
$$;
-- +goose StatementEnd

-- Replaces the penalty of a tenant, and returns its override. A factor is in thousandths; 0 is a ban. It lasts an hour
-- at most, whatever the leader does later.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamptz, reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made bigint;
BEGIN
    IF (penalize.factor BETWEEN 0 AND 999) IS NOT TRUE THEN
        RAISE EXCEPTION 'the factor must be 0 to 999 thousandths' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(penalize.tenant) BETWEEN 1 AND 128) IS NOT TRUE THEN
        RAISE EXCEPTION 'the tenant must have 1 to 128 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (penalize.until <= clock_timestamp() + interval '1 hour') IS NOT TRUE THEN
        RAISE EXCEPTION 'a penalty lasts an hour at most' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM rate_limiter.lift_penalty(penalize.tenant, 'replaced by another penalty');
    INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, expires_at, source)
    VALUES (CASE penalize.factor WHEN 0 THEN 'ban' ELSE 'multiplier' END, penalize.tenant, nullif(penalize.factor, 0),
        left(penalize.reason, 1000), 'abuse detector', penalize.until, 'detector')
    RETURNING id INTO made;
    RETURN made;
END
$$;
-- +goose StatementEnd

-- Takes a tenant off the ladder, and keeps it off for a time. Ending its penalty is up to the caller. Returns false if
-- nothing is remembered of the tenant.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    before rate_limiter.abuse_tenants;
    moved  rate_limiter.abuse_steps;
BEGIN
    IF (forgive_abuse.length BETWEEN interval '0' AND interval '30 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'the time must be 0 to 30 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM 1 FROM rate_limiter.abuse_state FOR UPDATE;
    SELECT * INTO before FROM rate_limiter.abuse_tenants t WHERE t.tenant = forgive_abuse.tenant FOR UPDATE;
    IF before.tenant IS NULL THEN
        RETURN false;
    END IF;
    UPDATE rate_limiter.abuse_tenants t
    SET state = (t.state - '{suspect,since,flagged_at,ended_at,banned_at}'::text[]) || '{"step": "none"}', reason = '',
        override = NULL, override_until = NULL, forgiven_until = clock_timestamp() + forgive_abuse.length
    WHERE t.tenant = forgive_abuse.tenant;
    INSERT INTO rate_limiter.abuse_steps (at, tenant, from_step, to_step, mode, reason)
    VALUES (clock_timestamp(), before.tenant, before.step, 'none', before.mode,
        left('forgiven by ' || rate_limiter.actor() || ': ' || coalesce(rate_limiter.reason(), ''), 1024))
    RETURNING * INTO moved;
    IF moved.from_step <> moved.to_step THEN
        INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
        VALUES ('abuse-step-' || moved.id, '/control', 'io.github.tenant-rate-limiting.abuse.step', moved.at,
            moved.tenant, json_build_object('version', 1, 'org', moved.tenant, 'from', moved.from_step,
                'to', moved.to_step, 'mode', moved.mode, 'reason', moved.reason));
    END IF;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- The penalties of the detector end: no program before this one lifts them.
SET LOCAL rate_limiter.reason = 'migration abuse was reverted';
DELETE FROM rate_limiter.overrides WHERE source = 'detector' AND author = 'abuse detector';
DROP FUNCTION rate_limiter.lift_penalty, rate_limiter.penalize, rate_limiter.forgive_abuse;
DROP TABLE rate_limiter.abuse_denials, rate_limiter.abuse_tenants, rate_limiter.abuse_steps, rate_limiter.abuse_state;
