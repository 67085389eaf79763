-- What makes the audit tell people apart: a token's name stays that of its role, and what a token has done is said by the
-- process that serves tokens alone. And what finds entries by time and by actor.

-- +goose Up
CREATE INDEX audit_at ON rate_limiter.audit (at);
CREATE INDEX audit_actor ON rate_limiter.audit (actor, id);

-- Who writes, by SET LOCAL rate_limiter.actor; the database user when nobody says. The actors of the REST API are its
-- tokens, token:NAME: only a login that may keep the API's answers writes for them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.actor() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text := coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text);
BEGIN
    IF lower(said) LIKE 'token:%' AND NOT has_table_privilege(session_user, 'rate_limiter.answers', 'INSERT') THEN
        RAISE EXCEPTION 'the login % may not write as %', session_user, said USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'audit', CONSTRAINT = 'audit_actor_token',
            HINT = 'only the process that serves the REST API writes for its tokens';
    END IF;
    RETURN said;
END
$$;
-- +goose StatementEnd

-- The audit names a token by its name: one that was an admin's is not given to a tenant. Of a name that a live token has
-- the unique index says so.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function keep_token_name is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF EXISTS (SELECT FROM rate_limiter.tokens t WHERE t.name = NEW.name AND t.revoked_at IS NOT NULL
            AND (t.role, t.org) <> (NEW.role, NEW.org)) THEN
        RAISE EXCEPTION 'the name % was that of a token of another role', NEW.name USING
            ERRCODE = 'unique_violation', SCHEMA = 'rate_limiter', TABLE = 'tokens',
            CONSTRAINT = 'tokens_one_role_per_name',
            HINT = 'take another name: the audit tells tokens apart by their names';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Of two that make a token of one name, the second waits and sees the first.
CREATE TRIGGER tokens_queue BEFORE INSERT ON rate_limiter.tokens EXECUTE FUNCTION rate_limiter.queue();
CREATE TRIGGER tokens_one_role_per_name BEFORE INSERT ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_token_name();

-- +goose Down
DROP TRIGGER tokens_queue ON rate_limiter.tokens;
DROP TRIGGER tokens_one_role_per_name ON rate_limiter.tokens;
DROP FUNCTION rate_limiter.keep_token_name;
DROP INDEX rate_limiter.audit_at, rate_limiter.audit_actor;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.actor() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text)
$$;
-- +goose StatementEnd
