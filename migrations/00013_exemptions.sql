-- Exemptions by the tag of a consumer, by an endpoint in requests of all tenants, and by an endpoint beside an address; and
-- networks of IPv4 beside those of IPv6, for overrides of every kind.
--
-- A row with a tag names no tenant: a program that does not read the column finds no subject in the row, and leaves it out.
-- With a tenant it would exempt all requests of that tenant.

-- +goose Up
-- One address; or a network without bits to its right, of which an IPv4 address is none.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.is_address(ip text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE family(ip::inet)
        WHEN 4 THEN host(ip::inet) = ip OR (network(ip::inet)::text = ip AND masklen(ip::inet) < 32)
        ELSE ip::inet = network(ip::inet) END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

ALTER TABLE rate_limiter.overrides
    ADD COLUMN tag text NOT NULL DEFAULT '',
    ADD CONSTRAINT overrides_tag CHECK (octet_length(tag) <= 128 AND strpos(tag, '*') = 0),
    ADD CONSTRAINT overrides_tag_unused CHECK (kind = 'exempt' OR tag = ''),
    ADD CONSTRAINT overrides_ip_all CHECK (kind <> 'exempt' OR ip NOT LIKE '%/0') NOT VALID,
    DROP CONSTRAINT overrides_subject,
    ADD CONSTRAINT overrides_subject CHECK (
        CASE WHEN tag <> '' THEN tenant = '' AND "user" = '' AND credential = '' AND ip = ''
             WHEN ip <> '' THEN "user" = '' AND credential = '' AND (endpoint = '' OR kind = 'exempt')
             WHEN credential <> '' THEN "user" = '' AND endpoint = ''
             WHEN kind = 'exempt' AND tenant = '' THEN endpoint <> '' AND "user" = ''
             ELSE tenant <> '' END);
ALTER TABLE rate_limiter.override_history ADD COLUMN tag text NOT NULL DEFAULT '';

DROP INDEX rate_limiter.overrides_one_per_subject;
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

-- +goose Down
-- What the columns and the rules before cannot hold ends, and stays in the history.
SET LOCAL rate_limiter.reason = 'migration 00013_exemptions was reverted';
DELETE FROM rate_limiter.overrides WHERE tag <> '' OR tenant = '' AND credential = '' AND ip = ''
    OR ip <> '' AND endpoint <> '' OR ip LIKE '%.%/%';

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

DROP INDEX rate_limiter.overrides_one_per_subject;
CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides
    (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, kind, policy, source);

ALTER TABLE rate_limiter.override_history DROP COLUMN tag;
ALTER TABLE rate_limiter.overrides
    DROP CONSTRAINT overrides_subject,
    ADD CONSTRAINT overrides_subject CHECK (
        CASE WHEN ip <> '' THEN "user" = '' AND endpoint = '' AND credential = ''
             WHEN credential <> '' THEN "user" = '' AND endpoint = ''
             ELSE tenant <> '' END),
    DROP CONSTRAINT overrides_ip_all,
    DROP COLUMN tag; -- with its constraints

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.is_address(ip text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE family(ip::inet) WHEN 4 THEN host(ip::inet) = ip ELSE ip::inet = network(ip::inet) END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END
$$;
-- +goose StatementEnd
