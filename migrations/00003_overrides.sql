-- Overrides: changes to the limits of one tenant, user, endpoint, credential or address, with a reason, an author and
-- an end. One that ends, by hand or because it has expired, moves to the history; the audit has it in any case. And
-- abuse detection, which makes overrides: what the leader remembers of tenants (docs/abuse.md).

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.overrides (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text        NOT NULL,
    tenant      text        NOT NULL DEFAULT '', -- subject: a tenant, and in it perhaps a user, an endpoint or both;
    "user"      text        NOT NULL DEFAULT '' CONSTRAINT overrides_user CHECK (octet_length("user") <= 128),
    endpoint    text        NOT NULL DEFAULT '',
    credential  text        NOT NULL DEFAULT '', -- or a credential;
    ip          text        NOT NULL DEFAULT '', -- or an address: these two of the tenant if one is named, else of all
    policy      text        NOT NULL DEFAULT '', -- that it changes; empty for a multiplier: all of the subject
    "limit"     bigint CONSTRAINT overrides_limit CHECK ("limit" BETWEEN 1 AND 1000000000000), -- tokens
    window_size bigint, -- seconds; null: as in the policy
    burst       bigint CONSTRAINT overrides_burst CHECK (burst BETWEEN 1 AND 1000000000000), -- tokens
    factor      bigint, -- of a multiplier, in thousandths: 1500 is half as much again
    reason      text        NOT NULL CONSTRAINT overrides_reason CHECK (reason ~ '\S' AND octet_length(reason) <= 1024),
    author      text        NOT NULL CONSTRAINT overrides_author CHECK (author ~ '\S' AND octet_length(author) <= 256),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz, -- it ends at this instant, whether or not the row is still here
    permanent   boolean     NOT NULL DEFAULT false,
    source      text        NOT NULL DEFAULT 'commercial', -- detector: a penalty, which applies after commercial ones
    revision    bigint      NOT NULL DEFAULT 1,
    public_note text        NOT NULL DEFAULT '', -- what a tenant reads of it: reason and author are for operators alone
    tag         text        NOT NULL DEFAULT '', -- of consumers: an exemption of theirs
    starts_at   timestamptz, -- nodes enforce it from then on, by their clocks; null: it began when it was made
    CONSTRAINT overrides_kind CHECK (kind IN ('custom_limit', 'multiplier', 'ban', 'exempt')),
    CONSTRAINT overrides_tenant CHECK (octet_length(tenant) <= 128),
    CONSTRAINT overrides_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT overrides_credential CHECK (octet_length(credential) <= 128),
    CONSTRAINT overrides_ip CHECK (ip = '' OR rate_limiter.is_address(ip)),
    CONSTRAINT overrides_ip_all CHECK (kind <> 'exempt' OR ip NOT LIKE '%/0'),
    CONSTRAINT overrides_tag CHECK (octet_length(tag) <= 128 AND strpos(tag, '*') = 0),
    CONSTRAINT overrides_tag_unused CHECK (kind = 'exempt' OR tag = ''),
    CONSTRAINT overrides_subject CHECK (
        CASE WHEN tag <> '' THEN tenant = '' AND "user" = '' AND credential = '' AND ip = ''
             WHEN ip <> '' THEN "user" = '' AND credential = '' AND (endpoint = '' OR kind = 'exempt')
             WHEN credential <> '' THEN "user" = '' AND endpoint = ''
             WHEN kind = 'exempt' AND tenant = '' THEN endpoint <> '' AND "user" = ''
             ELSE tenant <> '' END),
    CONSTRAINT overrides_policy CHECK (policy ~ '^[A-Za-z0-9_.-]{0,64}$'),
    CONSTRAINT overrides_policy_missing CHECK (kind <> 'custom_limit' OR policy <> ''),
    CONSTRAINT overrides_policy_unused CHECK (kind IN ('custom_limit', 'multiplier') OR policy = ''),
    CONSTRAINT overrides_limit_missing CHECK (kind <> 'custom_limit' OR "limit" IS NOT NULL),
    CONSTRAINT overrides_limit_unused CHECK (kind = 'custom_limit' OR "limit" IS NULL),
    CONSTRAINT overrides_window_size CHECK (window_size BETWEEN 1 AND 31622400),
    CONSTRAINT overrides_window_size_unused CHECK (kind = 'custom_limit' OR window_size IS NULL),
    CONSTRAINT overrides_burst_unused CHECK (kind = 'custom_limit' OR burst IS NULL),
    CONSTRAINT overrides_factor CHECK (factor BETWEEN 1 AND 1000000),
    CONSTRAINT overrides_factor_missing CHECK (kind <> 'multiplier' OR factor IS NOT NULL),
    CONSTRAINT overrides_factor_unused CHECK (kind = 'multiplier' OR factor IS NULL),
    CONSTRAINT overrides_expires_at CHECK (expires_at > created_at AND isfinite(expires_at)),
    CONSTRAINT overrides_expires_at_missing CHECK (permanent OR expires_at IS NOT NULL),
    CONSTRAINT overrides_expires_at_permanent CHECK (NOT permanent OR expires_at IS NULL),
    CONSTRAINT overrides_source CHECK (source IN ('commercial', 'detector', 'scheduled')),
    CONSTRAINT overrides_public_note CHECK (octet_length(public_note) <= 1024 AND public_note !~ '[[:cntrl:]]'),
    CONSTRAINT overrides_starts_at CHECK (isfinite(starts_at)),
    CONSTRAINT overrides_starts_at_end CHECK (starts_at < expires_at),
    CONSTRAINT overrides_starts_at_source CHECK ((starts_at IS NOT NULL) = (source = 'scheduled'))
);
-- Of one kind, for one subject and one policy, there is one override of each source and start.
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source,
    coalesce(starts_at, '-infinity'));
CREATE INDEX overrides_expiry ON rate_limiter.overrides (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE rate_limiter.override_history (
    LIKE rate_limiter.overrides,
    ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_by   text        NOT NULL,
    end_reason text        NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX override_history_tenant ON rate_limiter.override_history (tenant, id);

-- An insert has its reason in the row.
CREATE FUNCTION rate_limiter.want_reason() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF rate_limiter.reason() IS NULL THEN
        RAISE EXCEPTION '% of % needs a reason', TG_OP, TG_TABLE_NAME USING
            ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            CONSTRAINT = 'overrides_change_reason', HINT = 'SET LOCAL rate_limiter.reason = ''why''';
    END IF;
    RETURN NULL;
END
$$;
CREATE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('remember_override', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.override_history
    SELECT h.* FROM old_rows o, jsonb_populate_record(NULL::rate_limiter.override_history, to_jsonb(o)
        || jsonb_build_object('ended_at', clock_timestamp(), 'ended_by', rate_limiter.actor(),
            'end_reason', rate_limiter.reason())) h;
    RETURN NULL;
END
$$;
CREATE TRIGGER overrides_change_reason BEFORE UPDATE OR DELETE ON rate_limiter.overrides
    EXECUTE FUNCTION rate_limiter.want_reason();
CREATE TRIGGER overrides_history AFTER DELETE ON rate_limiter.overrides REFERENCING OLD TABLE AS old_rows
    EXECUTE FUNCTION rate_limiter.remember_override();
CREATE TRIGGER overrides_names BEFORE INSERT OR UPDATE OF author ON rate_limiter.overrides
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('author');
CALL rate_limiter.keep_record('rate_limiter.overrides', 'override', 'id', 'tenant');

-- Denials by tenant and minute, of the last hour. The sketches of names are HyperLogLog, as in plugin/observe/usage.
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
    tenant         text PRIMARY KEY CONSTRAINT abuse_tenants_tenant CHECK (octet_length(tenant) BETWEEN 1 AND 128),
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

-- Ends the penalties of a tenant, '' of all, and returns how many there were. The leader cannot write overrides. This
-- function and penalize end and make overrides of the abuse detector only. So a login of the leader cannot make an
-- exemption, raise a limit, or end what an operator made.
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
-- Replaces the penalty of a tenant, and returns its override. A factor is in thousandths; 0 is a ban. It lasts an hour
-- at most, whatever the leader does later.
CREATE FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamptz, reason text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made bigint;
BEGIN
    PERFORM rate_limiter.check_value(penalize.factor BETWEEN 0 AND 999, 'the factor must be 0 to 999 thousandths'),
        rate_limiter.check_value(octet_length(penalize.tenant) BETWEEN 1 AND 128,
            'the tenant must have 1 to 128 bytes'),
        rate_limiter.check_value(penalize.until <= clock_timestamp() + '1 hour', 'a penalty lasts an hour at most');
    PERFORM rate_limiter.lift_penalty(penalize.tenant, 'replaced by another penalty');
    INSERT INTO rate_limiter.overrides (kind, tenant, factor, reason, author, expires_at, source)
    VALUES (CASE penalize.factor WHEN 0 THEN 'ban' ELSE 'multiplier' END, penalize.tenant, nullif(penalize.factor, 0),
        left(penalize.reason, 1000), 'abuse detector', penalize.until, 'detector')
    RETURNING id INTO made;
    RETURN made;
END
$$;
-- Takes a tenant off the ladder for a time, and returns false if nothing is remembered of it. Its penalty stays.
CREATE FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    before rate_limiter.abuse_tenants;
    moved  rate_limiter.abuse_steps;
BEGIN
    PERFORM rate_limiter.check_value(forgive_abuse.length BETWEEN '0' AND '30 days', 'the time must be 0 to 30 days');
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
DROP FUNCTION rate_limiter.lift_penalty, rate_limiter.penalize, rate_limiter.forgive_abuse;
DROP TABLE rate_limiter.abuse_denials, rate_limiter.abuse_tenants, rate_limiter.abuse_steps, rate_limiter.abuse_state,
    rate_limiter.overrides, rate_limiter.override_history;
DROP FUNCTION rate_limiter.want_reason, rate_limiter.remember_override;
