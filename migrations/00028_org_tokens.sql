-- Tokens that an org manages itself through the REST API. Their names begin with the org, {org}/{name}, which no other
-- token's name may have: an org neither takes nor learns the names of others. The login that serves the API makes, rotates
-- and revokes them by functions, and gets no right to tokens.
--
-- A token that was rotated is revoked from a time on that may be ahead. A program of the version before sees it as revoked.

-- +goose Up
-- The org as the beginning of a name: characters that a name may not have are percent-encoded, byte by byte. A long one is
-- hashed.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.token_org(org text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN length(e.text) <= 128 THEN e.text ELSE '~' || encode(sha256(convert_to(org, 'UTF8')), 'hex') END
    FROM (
        SELECT string_agg(CASE WHEN c ~ '[A-Za-z0-9_.@-]' COLLATE "C" THEN c
            ELSE regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g') END, '' ORDER BY n) AS text
        FROM regexp_split_to_table(org, '') WITH ORDINALITY s(c, n)
    ) e
$$;
-- +goose StatementEnd

ALTER TABLE rate_limiter.tokens
    DROP CONSTRAINT tokens_name,
    ADD CONSTRAINT tokens_name CHECK (name ~ '^([A-Za-z0-9_.@%~-]{1,128}/)?[A-Za-z0-9_.@-]{1,64}$'),
    ADD CONSTRAINT tokens_name_org CHECK (position('/' IN name) = 0 OR role = 'tenant');
CREATE INDEX tokens_org ON rate_limiter.tokens (org, id) WHERE org <> '';
CREATE INDEX tokens_spelling ON rate_limiter.tokens (lower(name COLLATE "C"));

-- A key of a request is beside the name of its token.
ALTER TABLE rate_limiter.answers
    DROP CONSTRAINT answers_token,
    ADD CONSTRAINT answers_token CHECK (octet_length(token) BETWEEN 1 AND 256);

DROP TRIGGER tokens_fixed ON rate_limiter.tokens;
CREATE TRIGGER tokens_fixed BEFORE UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN ((OLD.id, OLD.name, OLD.hash, OLD.role, OLD.org, OLD.created_at, OLD.created_by, OLD.expires_at)
            IS DISTINCT FROM (NEW.id, NEW.name, NEW.hash, NEW.role, NEW.org, NEW.created_at, NEW.created_by, NEW.expires_at)
        OR ((OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM (NEW.revoked_at, NEW.revoked_by)
            AND (OLD.revoked_at <= clock_timestamp() OR (NEW.revoked_at < OLD.revoked_at) IS FALSE
                OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL))))
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token and make another');

-- As before, but a name that begins with an org is that of the org, and is compared with those of the same org.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function keep_token_name is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NEW.revoked_at IS NOT NULL THEN
        RAISE EXCEPTION 'the token % is revoked before it is made', NEW.name USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_made_live',
            HINT = 'make the token, and revoke it when its time has come';
    END IF;
    IF position('/' IN NEW.name) > 0 AND split_part(NEW.name, '/', 1) IS DISTINCT FROM rate_limiter.token_org(NEW.org) THEN
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
-- +goose StatementEnd

-- Makes a token of an org and returns its id, or why not: live (there is a live one of the name), full (the org has 20 live
-- ones) or many (too many were made in a day, because rows are never deleted). It has the role tenant:{org}, and ends
-- within a year.
-- +goose StatementBegin
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
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_lifetime';
    END IF;
    PERFORM rate_limiter.await_turn(); -- so that what is counted here stays true
    now := clock_timestamp();
    problem := CASE
        WHEN EXISTS (SELECT FROM rate_limiter.tokens t
            WHERE t.name = full_name AND t.revoked_at IS NULL AND (t.expires_at > now) IS NOT FALSE) THEN 'live'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = create_org_token.org AND position('/' IN t.name) > 0
            AND t.revoked_at IS NULL AND (t.expires_at > now) IS NOT FALSE) >= 20 THEN 'full'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = create_org_token.org AND position('/' IN t.name) > 0
            AND t.created_at > now - interval '1 day') >= 100 THEN 'many' END;
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
-- +goose StatementEnd

-- Gives the live token of a name another secret and returns the new row's id, or why not: missing, many, or busy (the
-- secrets before four rotations still work). The old secret works for overlap, but not beyond its end. The new token ends
-- as long after now as the old one was to end after its creation.
-- +goose StatementBegin
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
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.name = full_name AND t.revoked_at > now) >= 4 THEN 'busy'
        WHEN (SELECT count(*) FROM rate_limiter.tokens t WHERE t.org = rotate_org_token.org AND position('/' IN t.name) > 0
            AND t.created_at > now - interval '1 day') >= 100 THEN 'many' END;
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
-- +goose StatementEnd

-- Revokes the tokens of a name of an org, with the secrets before rotations, and returns how many; 0: none is live.
-- +goose StatementBegin
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
-- +goose StatementEnd

-- +goose Down
-- The tokens of orgs end, because a program of the version before would not list them as theirs. Their rows stay.
SET LOCAL rate_limiter.reason = 'migration 00028_org_tokens was reverted';
UPDATE rate_limiter.tokens t SET revoked_at = clock_timestamp(), revoked_by = rate_limiter.actor()
WHERE t.revoked_at > clock_timestamp() OR (t.revoked_at IS NULL AND position('/' IN t.name) > 0);
DELETE FROM rate_limiter.answers a WHERE octet_length(a.token) > 64;
DROP FUNCTION rate_limiter.create_org_token, rate_limiter.rotate_org_token, rate_limiter.revoke_org_token;
DROP INDEX rate_limiter.tokens_org, rate_limiter.tokens_spelling;
ALTER TABLE rate_limiter.tokens
    DROP CONSTRAINT tokens_name_org,
    DROP CONSTRAINT tokens_name,
    ADD CONSTRAINT tokens_name CHECK (name ~ '^[A-Za-z0-9_.@-]{1,64}$') NOT VALID;
ALTER TABLE rate_limiter.answers
    DROP CONSTRAINT answers_token,
    ADD CONSTRAINT answers_token CHECK (octet_length(token) BETWEEN 1 AND 64);
DROP TRIGGER tokens_fixed ON rate_limiter.tokens;
CREATE TRIGGER tokens_fixed BEFORE UPDATE ON rate_limiter.tokens
    FOR EACH ROW WHEN ((OLD.id, OLD.name, OLD.hash, OLD.role, OLD.org, OLD.created_at, OLD.created_by, OLD.expires_at)
            IS DISTINCT FROM (NEW.id, NEW.name, NEW.hash, NEW.role, NEW.org, NEW.created_at, NEW.created_by, NEW.expires_at)
        OR (OLD.revoked_at IS NOT NULL AND (OLD.revoked_at, OLD.revoked_by) IS DISTINCT FROM (NEW.revoked_at, NEW.revoked_by)))
    EXECUTE FUNCTION rate_limiter.refuse('revoke the token and make another');
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function keep_token_name is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NEW.revoked_at IS NOT NULL THEN
        RAISE EXCEPTION 'the token % is revoked before it is made', NEW.name USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens', CONSTRAINT = 'tokens_made_live',
            HINT = 'make the token, and revoke it when its time has come';
    END IF;
    IF EXISTS (SELECT FROM rate_limiter.tokens t WHERE lower(t.name COLLATE "C") = lower(NEW.name COLLATE "C")
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
-- +goose StatementEnd
DROP FUNCTION rate_limiter.token_org;
