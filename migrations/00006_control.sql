-- What the REST API needs beside the rows that it writes: who may call it, and what it has answered lately.

-- +goose Up
-- Tokens. A secret is 32 random bytes and not a password: nobody can guess one from its hash, so a fast hash will do, and
-- the row is found by it.
--
-- A token is made and revoked, and never changed or deleted between and after. Nodes do not know tokens: there is no
-- version to take, and the audit tells everything but the hash.
CREATE TABLE rate_limiter.tokens (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text        NOT NULL, -- in the audit it is the actor of what the token does
    hash         bytea       NOT NULL, -- SHA-256 of the secret
    role         text        NOT NULL,
    org          text        NOT NULL DEFAULT '', -- of a tenant's token: the tenant
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL DEFAULT rate_limiter.actor(),
    expires_at   timestamptz, -- null: never
    last_used_at timestamptz, -- within a minute; null: never
    revoked_at   timestamptz, -- null: it is not
    revoked_by   text        NOT NULL DEFAULT '',
    CONSTRAINT tokens_name CHECK (name ~ '^[A-Za-z0-9_.@-]{1,64}$'),
    CONSTRAINT tokens_hash CHECK (octet_length(hash) = 32),
    CONSTRAINT tokens_role CHECK (role IN ('admin', 'viewer', 'tenant')),
    CONSTRAINT tokens_org CHECK (octet_length(org) <= 128),
    CONSTRAINT tokens_org_missing CHECK (role <> 'tenant' OR org <> ''),
    CONSTRAINT tokens_org_unused CHECK (role = 'tenant' OR org = ''),
    CONSTRAINT tokens_created_by CHECK (created_by ~ '\S' AND octet_length(created_by) <= 256),
    CONSTRAINT tokens_expires_at CHECK (expires_at > created_at AND isfinite(expires_at)),
    CONSTRAINT tokens_revoked_by CHECK ((revoked_at IS NULL) = (revoked_by = '') AND octet_length(revoked_by) <= 256)
);
CREATE UNIQUE INDEX tokens_one_per_hash ON rate_limiter.tokens (hash);
-- Of the tokens that are not revoked, each has a name of its own: the audit says who it was.
CREATE UNIQUE INDEX tokens_one_per_name ON rate_limiter.tokens (name) WHERE revoked_at IS NULL;

-- +goose StatementBegin
CREATE FUNCTION rate_limiter.record_token() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'token', lower(TG_OP), NEW.name, NEW.org,
        CASE TG_OP WHEN 'UPDATE' THEN to_jsonb(OLD) - 'hash' END, to_jsonb(NEW) - 'hash'
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER tokens_inserted AFTER INSERT ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_token();
CREATE TRIGGER tokens_updated AFTER UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION rate_limiter.record_token();
CREATE TRIGGER tokens_fixed BEFORE UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN ((OLD.id, OLD.name, OLD.hash, OLD.role, OLD.org, OLD.created_at, OLD.created_by, OLD.expires_at)
            IS DISTINCT FROM (NEW.id, NEW.name, NEW.hash, NEW.role, NEW.org, NEW.created_at, NEW.created_by, NEW.expires_at)
        OR (OLD.revoked_at IS NOT NULL AND (OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM (NEW.revoked_at, NEW.revoked_by)))
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token and make another');
CREATE TRIGGER tokens_stay BEFORE DELETE OR TRUNCATE ON rate_limiter.tokens
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token: its row stays, for the audit');

-- What was answered to a request that carries a key, so that the same request is answered the same again and nothing is
-- written twice. It is written in the transaction of the request, which all others wait for.
CREATE TABLE rate_limiter.answers (
    token   text        NOT NULL, -- the name of the caller's: each has keys of its own
    key     text        NOT NULL,
    request bytea       NOT NULL, -- SHA-256 of all that the request asks for
    answer  json        NOT NULL,
    version bigint      NOT NULL, -- that was answered with it
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (token, key),
    CONSTRAINT answers_token CHECK (octet_length(token) BETWEEN 1 AND 64),
    CONSTRAINT answers_key CHECK (key ~ '^[ -~]{1,128}$'),
    CONSTRAINT answers_request CHECK (octet_length(request) = 32)
);
CREATE INDEX answers_at ON rate_limiter.answers (at);

-- +goose Down
DROP TABLE rate_limiter.tokens, rate_limiter.answers;
DROP FUNCTION rate_limiter.record_token;
