-- Overrides: changes to the limits of one tenant, user, endpoint, credential or address, with a reason, an author and an
-- end. One that ends, by hand or because it has expired, moves to the history; the audit has it in any case.

-- +goose Up
-- One IPv4 address; an IPv6 address, or a prefix of them without bits to its right.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.is_address(ip text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE family(ip::inet) WHEN 4 THEN host(ip::inet) = ip ELSE ip::inet = network(ip::inet) END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

CREATE TABLE rate_limiter.overrides (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text        NOT NULL,
    tenant      text        NOT NULL DEFAULT '', -- the subject: a tenant, and in it perhaps a user, an endpoint or both;
    "user"      text        NOT NULL DEFAULT '',
    endpoint    text        NOT NULL DEFAULT '',
    credential  text        NOT NULL DEFAULT '', -- or a credential;
    ip          text        NOT NULL DEFAULT '', -- or an address: these two of the tenant if one is named, else of all
    policy      text        NOT NULL DEFAULT '', -- name of the policies that it changes; empty for a multiplier: all of the subject
    "limit"     bigint, -- tokens
    window_size bigint, -- seconds; null: the policy's own
    burst       bigint, -- tokens
    factor      bigint, -- of a multiplier, in thousandths: 1500 is half as much again
    reason      text        NOT NULL,
    author      text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at  timestamptz, -- it ends at this instant, whether or not the row is still here
    permanent   boolean     NOT NULL DEFAULT false,
    source      text        NOT NULL DEFAULT 'commercial', -- detector: a penalty, which applies after the commercial ones
    revision    bigint      NOT NULL DEFAULT 1,
    CONSTRAINT overrides_kind CHECK (kind IN ('custom_limit', 'multiplier', 'ban', 'exempt')),
    CONSTRAINT overrides_tenant CHECK (octet_length(tenant) <= 128),
    CONSTRAINT overrides_user CHECK (octet_length("user") <= 128),
    CONSTRAINT overrides_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT overrides_credential CHECK (octet_length(credential) <= 128),
    CONSTRAINT overrides_ip CHECK (ip = '' OR rate_limiter.is_address(ip)),
    CONSTRAINT overrides_subject CHECK (
        CASE WHEN ip <> '' THEN "user" = '' AND endpoint = '' AND credential = ''
             WHEN credential <> '' THEN "user" = '' AND endpoint = ''
             ELSE tenant <> '' END),
    CONSTRAINT overrides_policy CHECK (policy ~ '^[A-Za-z0-9_.-]{0,64}$'),
    CONSTRAINT overrides_policy_missing CHECK (kind <> 'custom_limit' OR policy <> ''),
    CONSTRAINT overrides_policy_unused CHECK (kind IN ('custom_limit', 'multiplier') OR policy = ''),
    CONSTRAINT overrides_limit CHECK ("limit" BETWEEN 1 AND 1000000000000),
    CONSTRAINT overrides_limit_missing CHECK (kind <> 'custom_limit' OR "limit" IS NOT NULL),
    CONSTRAINT overrides_limit_unused CHECK (kind = 'custom_limit' OR "limit" IS NULL),
    CONSTRAINT overrides_window_size CHECK (window_size BETWEEN 1 AND 31622400),
    CONSTRAINT overrides_window_size_unused CHECK (kind = 'custom_limit' OR window_size IS NULL),
    CONSTRAINT overrides_burst CHECK (burst BETWEEN 1 AND 1000000000000),
    CONSTRAINT overrides_burst_unused CHECK (kind = 'custom_limit' OR burst IS NULL),
    CONSTRAINT overrides_factor CHECK (factor BETWEEN 1 AND 1000000),
    CONSTRAINT overrides_factor_missing CHECK (kind <> 'multiplier' OR factor IS NOT NULL),
    CONSTRAINT overrides_factor_unused CHECK (kind = 'multiplier' OR factor IS NULL),
    CONSTRAINT overrides_reason CHECK (reason ~ '\S' AND octet_length(reason) <= 1024),
    CONSTRAINT overrides_author CHECK (author ~ '\S' AND octet_length(author) <= 256),
    CONSTRAINT overrides_expires_at CHECK (expires_at > created_at AND isfinite(expires_at)),
    CONSTRAINT overrides_expires_at_missing CHECK (permanent OR expires_at IS NOT NULL),
    CONSTRAINT overrides_expires_at_permanent CHECK (NOT permanent OR expires_at IS NULL),
    CONSTRAINT overrides_source CHECK (source IN ('commercial', 'detector'))
);
-- Of one kind, for one subject and one policy, there is one override of each source.
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, kind, policy, source);
CREATE INDEX overrides_expiry ON rate_limiter.overrides (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE rate_limiter.override_history (
    LIKE rate_limiter.overrides,
    ended_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_by   text        NOT NULL,
    end_reason text        NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX override_history_tenant ON rate_limiter.override_history (tenant, id);

-- An insert tells its reason in the row.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.want_reason() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF rate_limiter.reason() IS NULL THEN
        RAISE EXCEPTION '% of % needs a reason', TG_OP, TG_TABLE_NAME USING
            ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = 'overrides_change_reason',
            HINT = 'SET LOCAL rate_limiter.reason = ''why''';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION rate_limiter.remember_override() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO rate_limiter.override_history (id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision, ended_by, end_reason)
    SELECT id, kind, tenant, "user", endpoint, credential, ip, policy, "limit",
        window_size, burst, factor, reason, author, created_at, expires_at, permanent, source, revision,
        rate_limiter.actor(), rate_limiter.reason()
    FROM old_rows;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER overrides_change_reason BEFORE UPDATE OR DELETE ON rate_limiter.overrides
    EXECUTE FUNCTION rate_limiter.want_reason();
CREATE TRIGGER overrides_history AFTER DELETE ON rate_limiter.overrides REFERENCING OLD TABLE AS old_rows
    EXECUTE FUNCTION rate_limiter.remember_override();
CALL rate_limiter.keep_record('rate_limiter.overrides', 'override', 'id', 'tenant');

-- +goose Down
DROP TABLE rate_limiter.overrides, rate_limiter.override_history;
DROP FUNCTION rate_limiter.is_address, rate_limiter.want_reason, rate_limiter.remember_override;
