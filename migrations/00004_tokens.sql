-- What the REST API needs beside the rows that it writes: who may call it, and what it has answered lately.
--
-- The secret of a token is 32 random bytes and not a password: it cannot be guessed from its hash, so a fast hash will
-- do, and the row is found by it. A token is made live and then revoked; it is never changed or deleted. Nodes do not
-- know tokens: there is no version to take. A token that was rotated is revoked from a time on that may be ahead.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.tokens (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text        NOT NULL, -- in the audit the actor of what it does; {org}/{name}: the org manages it
    hash         bytea       NOT NULL CONSTRAINT tokens_hash CHECK (octet_length(hash) = 32), -- SHA-256 of the secret
    role         text        NOT NULL CONSTRAINT tokens_role CHECK (role IN ('admin', 'viewer', 'tenant')),
    org          text        NOT NULL DEFAULT '', -- of a tenant's token: the tenant
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL DEFAULT rate_limiter.actor(),
    expires_at   timestamptz, -- null: never
    last_used_at timestamptz, -- within a minute; null: never
    revoked_at   timestamptz, -- null: it is not
    revoked_by   text        NOT NULL DEFAULT '',
    CONSTRAINT tokens_name CHECK (name ~ '^([A-Za-z0-9_.@%~-]{1,128}/)?[A-Za-z0-9_.@-]{1,64}$'),
    CONSTRAINT tokens_name_org CHECK (position('/' IN name) = 0 OR role = 'tenant'),
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
CREATE INDEX tokens_org ON rate_limiter.tokens (org, id) WHERE org <> '';
CREATE INDEX tokens_spelling ON rate_limiter.tokens (lower(name COLLATE "C"));

CREATE FUNCTION rate_limiter.record_token() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('record_token', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'token', lower(TG_OP), NEW.name,
        NEW.org, CASE TG_OP WHEN 'UPDATE' THEN to_jsonb(OLD) - 'hash' END, to_jsonb(NEW) - 'hash'
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;
-- The org as the beginning of a name: characters that a name may not have are percent-encoded. A long one is hashed.
CREATE FUNCTION rate_limiter.token_org(org text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN length(e.text) <= 128 THEN e.text ELSE '~' || encode(sha256(convert_to(org, 'UTF8')), 'hex') END
    FROM (
        SELECT string_agg(CASE WHEN c ~ '[A-Za-z0-9_.@-]' COLLATE "C" THEN c
            ELSE regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g') END, '' ORDER BY n) AS text
        FROM regexp_split_to_table(org, '') WITH ORDINALITY s(c, n)
    ) e
$$;
-- The audit names a token by its name: one that is or was an admin's is not given to a tenant, and neither is another
-- spelling of it. A token that is born revoked would only take a name. A name that begins with an org is compared with
-- names of the same org: an org neither takes nor learns the names of others.
CREATE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM rate_limiter.check_table('keep_token_name', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    IF NEW.revoked_at IS NOT NULL THEN
        RAISE EXCEPTION 'the token % is revoked before it is made', NEW.name USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_made_live',
            HINT = 'make the token, and revoke it when its time has come';
    END IF;
    IF position('/' IN NEW.name) > 0 AND split_part(NEW.name, '/', 1) IS DISTINCT FROM rate_limiter.token_org(NEW.org)
    THEN
        RAISE EXCEPTION 'the name % does not begin with the org of the token', NEW.name USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_name_org',
            HINT = 'name it without a slash';
    END IF;
    IF EXISTS (SELECT FROM rate_limiter.tokens t WHERE lower(t.name COLLATE "C") = lower(NEW.name COLLATE "C")
            AND (t.org = NEW.org OR position('/' IN NEW.name) = 0)
            AND (t.name, t.role, t.org) <> (NEW.name, NEW.role, NEW.org)
            AND (t.revoked_at IS NOT NULL OR t.name <> NEW.name)) THEN
        RAISE EXCEPTION 'the name % was that of a token of another role or spelling', NEW.name USING
            ERRCODE = 'unique_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens',
            CONSTRAINT = 'tokens_one_role_per_name',
            HINT = 'take another name: the audit tells tokens apart by their names';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER tokens_inserted AFTER INSERT ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_token();
CREATE TRIGGER tokens_updated AFTER UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION rate_limiter.record_token();
CREATE TRIGGER tokens_fixed BEFORE UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN ((OLD.id, OLD.name, OLD.hash, OLD.role, OLD.org, OLD.created_at, OLD.created_by, OLD.expires_at)
            IS DISTINCT FROM (NEW.id, NEW.name, NEW.hash, NEW.role, NEW.org, NEW.created_at, NEW.created_by,
                NEW.expires_at)
        OR ((OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM (NEW.revoked_at, NEW.revoked_by)
            AND (OLD.revoked_at <= clock_timestamp() OR (NEW.revoked_at < OLD.revoked_at) IS FALSE
                OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL))))
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token and make another');
CREATE TRIGGER tokens_stay BEFORE DELETE OR TRUNCATE ON rate_limiter.tokens
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token: its row stays, for the audit');
-- Of two that make a token of one name, the second waits and sees the first.
CREATE TRIGGER tokens_queue BEFORE INSERT ON rate_limiter.tokens EXECUTE FUNCTION rate_limiter.queue();
CREATE TRIGGER tokens_one_role_per_name BEFORE INSERT ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_token_name();
CREATE TRIGGER tokens_names BEFORE INSERT OR UPDATE OF created_by, revoked_by ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('created_by', 'revoked_by');

-- Makes a token of an org and returns its id, or why not: live (there is a live one of the name), full (the org has 20
-- live ones) or many (too many were made in a day, because rows are never deleted). It has the role tenant:{org}, and
-- ends within a year. The login that serves the API has no right to tokens: it calls this and the next two functions.
CREATE FUNCTION rate_limiter.create_org_token(org text, name text, hash bytea, lifetime interval,
    OUT id bigint, OUT problem text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now       timestamptz;
    full_name CONSTANT text := rate_limiter.token_org(create_org_token.org) || '/' || create_org_token.name;
BEGIN
    IF (create_org_token.org <> '' AND create_org_token.name ~ '^[A-Za-z0-9_.@-]{1,64}$') IS NOT TRUE THEN
        RAISE EXCEPTION 'the name of a token must be 1 to 64 letters, digits, dots, dashes, underscores or @'
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_name';
    ELSIF (create_org_token.lifetime BETWEEN interval '1 second' AND interval '365 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'the token of an org must end within 365 days'
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens',
            CONSTRAINT = 'tokens_lifetime';
    END IF;
    PERFORM rate_limiter.await_turn(); -- so that what is counted here stays true
    now := clock_timestamp();
    problem := CASE
        WHEN EXISTS (SELECT FROM rate_limiter.tokens t
            WHERE t.name = full_name AND t.revoked_at IS NULL AND (t.expires_at > now) IS NOT FALSE) THEN 'live'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = create_org_token.org
            AND position('/' IN t.name) > 0 AND t.revoked_at IS NULL AND (t.expires_at > now) IS NOT FALSE) >= 20
            THEN 'full'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = create_org_token.org
            AND position('/' IN t.name) > 0 AND t.created_at > now - interval '1 day') >= 100 THEN 'many' END;
    IF problem IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE rate_limiter.tokens t SET revoked_at = now, revoked_by = rate_limiter.actor()
    WHERE t.name = full_name AND t.revoked_at IS NULL; -- it has expired
    INSERT INTO rate_limiter.tokens AS t (name, hash, role, org, expires_at)
    VALUES (full_name, create_org_token.hash, 'tenant', create_org_token.org, now + create_org_token.lifetime)
    RETURNING t.id INTO id;
END
$$;
-- Gives the live token of a name another secret and returns the new row's id, or why not: missing, many, or busy (the
-- secrets before four rotations still work). The old secret works for overlap, but not beyond its end. The new token
-- ends as long after now as the old one was to end after its creation.
CREATE FUNCTION rate_limiter.rotate_org_token(org text, name text, hash bytea, overlap interval,
    OUT id bigint, OUT problem text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now       timestamptz;
    old       record;
    full_name CONSTANT text := rate_limiter.token_org(rotate_org_token.org) || '/' || rotate_org_token.name;
BEGIN
    IF (rotate_org_token.overlap BETWEEN interval '0' AND interval '7 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'the old secret must end within 7 days'
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_overlap';
    END IF;
    PERFORM rate_limiter.await_turn();
    now := clock_timestamp();
    SELECT t.id, t.created_at, t.expires_at INTO old FROM rate_limiter.tokens t
    WHERE t.name = full_name AND t.org = rotate_org_token.org AND t.revoked_at IS NULL
        AND (t.expires_at > now) IS NOT FALSE;
    IF NOT FOUND THEN
        problem := 'missing';
        RETURN;
    END IF;
    problem := CASE
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.name = full_name AND t.revoked_at > now) >= 4
            THEN 'busy'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = rotate_org_token.org
            AND position('/' IN t.name) > 0 AND t.created_at > now - interval '1 day') >= 100 THEN 'many' END;
    IF problem IS NOT NULL THEN
        RETURN;
    END IF;
    UPDATE rate_limiter.tokens t SET revoked_at = now + rotate_org_token.overlap, revoked_by = rate_limiter.actor()
    WHERE t.id = old.id;
    UPDATE rate_limiter.tokens t SET revoked_at = now + rotate_org_token.overlap, revoked_by = rate_limiter.actor()
    WHERE t.name = full_name AND t.revoked_at > now + rotate_org_token.overlap;
    INSERT INTO rate_limiter.tokens AS t (name, hash, role, org, expires_at)
    VALUES (full_name, rotate_org_token.hash, 'tenant', rotate_org_token.org,
        now + least(old.expires_at - old.created_at, interval '365 days'))
    RETURNING t.id INTO id;
END
$$;
-- Revokes the tokens of a name of an org, with the secrets before rotations, and returns how many; 0: none is live.
CREATE FUNCTION rate_limiter.revoke_org_token(org text, name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now     timestamptz;
    revoked integer;
BEGIN
    PERFORM rate_limiter.await_turn();
    now := clock_timestamp();
    UPDATE rate_limiter.tokens t SET revoked_at = now, revoked_by = rate_limiter.actor()
    WHERE t.name = rate_limiter.token_org(revoke_org_token.org) || '/' || revoke_org_token.name
        AND t.org = revoke_org_token.org AND (t.revoked_at > now) IS NOT FALSE AND (t.expires_at > now) IS NOT FALSE;
    GET DIAGNOSTICS revoked = ROW_COUNT;
    RETURN revoked;
END
$$;
-- What was answered to a request that carries a key, so that the same request is answered the same again and nothing is
-- written twice. It is written in the transaction of the request, which all others wait for.
CREATE TABLE rate_limiter.answers (
    token   text        NOT NULL, -- the name of the caller: each has keys of its own
    key     text        NOT NULL CONSTRAINT answers_key CHECK (key ~ '^[ -~]{1,128}$'),
    request bytea       NOT NULL, -- SHA-256 of all that the request asks for
    answer  json        NOT NULL,
    version bigint      NOT NULL, -- that was answered with it
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (token, key),
    CONSTRAINT answers_token CHECK (octet_length(token) BETWEEN 1 AND 256),
    CONSTRAINT answers_request CHECK (octet_length(request) = 32)
);
CREATE INDEX answers_at ON rate_limiter.answers (at);
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.create_org_token, rate_limiter.rotate_org_token, rate_limiter.revoke_org_token;
DROP TABLE rate_limiter.tokens, rate_limiter.answers;
DROP FUNCTION rate_limiter.record_token, rate_limiter.keep_token_name, rate_limiter.token_org;
