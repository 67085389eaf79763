-- What makes the audit say who it was, also to people who read it: a name holds nothing that is not seen, only the
-- process that serves the REST API names its tokens, and a token's name has one role and one spelling.
--
-- Rows that are there stay as they are: what is checked is what is written from now on.

-- +goose Up
-- Raises an error for a text that may not say who has done something. What is not seen: control and format characters
-- (Unicode's Cc and Cf, with those that Unicode lets programs leave out of what they show), and space at either end. That
-- there must be a name at all is said by the columns.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF said ~ ('[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160'
            '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb'
            '\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]')
        OR btrim(said) <> '' AND said ~ ('^[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|'
            '[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]$')
    THEN
        RAISE EXCEPTION 'a name has space at an end, or a character that is not seen: %', to_json(said) USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_seen', HINT = 'write the name without it';
    END IF;
    IF lower(said COLLATE "C") LIKE 'token:%' AND NOT has_table_privilege(session_user, 'rate_limiter.answers', 'INSERT') THEN
        RAISE EXCEPTION 'the login % may not write as %', session_user, said USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_token',
            HINT = 'only the process that serves the REST API writes for its tokens';
    END IF;
END
$$;
-- +goose StatementEnd

-- Who writes, by SET LOCAL rate_limiter.actor; the database user when nobody says. It runs as its owner, so that who
-- writes needs no right to the check.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.actor() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    said text := coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text);
BEGIN
    PERFORM rate_limiter.check_actor(said, 'audit', 'audit_actor');
    RETURN said;
END
$$;
-- +goose StatementEnd

-- The columns by which a row says who made or ended it: what is in them already is not checked again.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.check_names() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function check_names is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF TG_TABLE_NAME = 'overrides' THEN
        IF TG_OP = 'INSERT' OR NEW.author IS DISTINCT FROM OLD.author THEN
            PERFORM rate_limiter.check_actor(NEW.author, 'overrides', 'overrides_author');
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'INSERT' OR NEW.created_by IS DISTINCT FROM OLD.created_by THEN
        PERFORM rate_limiter.check_actor(NEW.created_by, 'tokens', 'tokens_created_by');
    END IF;
    IF TG_OP = 'INSERT' OR NEW.revoked_by IS DISTINCT FROM OLD.revoked_by THEN
        PERFORM rate_limiter.check_actor(NEW.revoked_by, 'tokens', 'tokens_revoked_by');
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER overrides_names BEFORE INSERT OR UPDATE OF author ON rate_limiter.overrides
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names();
CREATE TRIGGER tokens_names BEFORE INSERT OR UPDATE OF created_by, revoked_by ON rate_limiter.tokens
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names();

-- The audit names a token by its name: one that is or was an admin's is not given to a tenant, nor is another spelling of
-- it. A token is made live: one that is born revoked would only take a name. Of a live token's own name the unique index
-- says so.
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

-- +goose Down
DROP TRIGGER overrides_names ON rate_limiter.overrides;
DROP TRIGGER tokens_names ON rate_limiter.tokens;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.actor() RETURNS text
LANGUAGE plpgsql STABLE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
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
DROP FUNCTION rate_limiter.check_names, rate_limiter.check_actor;
