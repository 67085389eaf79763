-- Lets only the process that serves the REST API write as a person whom an identity provider has signed in
-- (oidc:NAME), as for a token (token:NAME), and checks the names in webhooks too. And denies a node's report that
-- readers of the fleet could not show: they read the reports of all nodes.
--
-- Rows from before this migration stay as they are. The constraints are NOT VALID for that.

-- +goose Up
-- Raises an error for a text that may not be the actor of a change, as in 00010.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF said ~ ('[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160'
            '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff'
            '\uffa0\ufff0-\ufffb'
            '\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
            '\U000e0000-\U000e0fff]')
        OR btrim(said) <> '' AND said ~ ('^[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|'
            '[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]$')
    THEN
        RAISE EXCEPTION 'a name has space at an end, or a character that is not seen: %', to_json(said) USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_seen', HINT = 'write the name without it';
    END IF;
    IF lower(said COLLATE "C") SIMILAR TO '(token|oidc):%'
        AND NOT has_table_privilege(session_user, 'rate_limiter.answers', 'INSERT')
    THEN
        RAISE EXCEPTION 'the login % may not write as %', session_user, said USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_token',
            HINT = 'only the process that serves the REST API writes for its callers';
    END IF;
END
$$;
-- +goose StatementEnd

-- The columns by which a row says who made or ended it: an unchanged value is not checked again.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.check_names() RETURNS trigger
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
    IF TG_TABLE_NAME = 'webhooks' THEN
        IF TG_OP = 'INSERT' OR NEW.created_by IS DISTINCT FROM OLD.created_by THEN
            PERFORM rate_limiter.check_actor(NEW.created_by, 'webhooks', 'webhooks_created_by');
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

CREATE TRIGGER webhooks_names BEFORE INSERT OR UPDATE OF created_by ON rate_limiter.webhooks
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names();

-- JSON holds only instants of years with four digits, and a Redis that is away has one (RFC 3339) in away_since.
ALTER TABLE rate_limiter.nodes
    ADD CONSTRAINT nodes_instants CHECK (
        least(enforced_at, first_reported_at, reported_at) >= '1970-01-01 00:00+00'
        AND greatest(enforced_at, first_reported_at, reported_at) < '9999-01-01 00:00+00') NOT VALID,
    ADD CONSTRAINT nodes_redis_away CHECK (NOT redis @? 'strict $[*] ? (@.type() != "object" || exists (@.away_since)
        && !(@.away_since.type() == "string" && @.away_since like_regex "^(19[7-9]|[2-8][0-9][0-9])[0-9]-'
        '[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-2][0-9]:[0-5][0-9])$"))'
        ) NOT VALID;

-- +goose Down
ALTER TABLE rate_limiter.nodes DROP CONSTRAINT nodes_instants, DROP CONSTRAINT nodes_redis_away;
DROP TRIGGER webhooks_names ON rate_limiter.webhooks;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.check_names() RETURNS trigger
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
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF said ~ ('[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160'
            '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff'
            '\uffa0\ufff0-\ufffb'
            '\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
            '\U000e0000-\U000e0fff]')
        OR btrim(said) <> '' AND said ~ ('^[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]|'
            '[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]$')
    THEN
        RAISE EXCEPTION 'a name has space at an end, or a character that is not seen: %', to_json(said) USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_seen', HINT = 'write the name without it';
    END IF;
    IF lower(said COLLATE "C") LIKE 'token:%'
        AND NOT has_table_privilege(session_user, 'rate_limiter.answers', 'INSERT')
    THEN
        RAISE EXCEPTION 'the login % may not write as %', session_user, said USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = named_table,
            CONSTRAINT = named_constraint || '_token',
            HINT = 'only the process that serves the REST API writes for its tokens';
    END IF;
END
$$;
-- +goose StatementEnd
