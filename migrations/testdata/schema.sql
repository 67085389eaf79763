CREATE SCHEMA rate_limiter;

ALTER SCHEMA rate_limiter OWNER TO owner;

CREATE FUNCTION rate_limiter.actor() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    said text := coalesce(nullif(btrim(current_setting('rate_limiter.actor', true)), ''), session_user::text);
BEGIN
    PERFORM rate_limiter.check_actor(said, 'audit', 'audit_actor');
    RETURN said;
END
$$;

ALTER FUNCTION rate_limiter.actor() OWNER TO owner;

CREATE FUNCTION rate_limiter.await_turn() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM 1 FROM rate_limiter.version FOR UPDATE;
END
$$;

ALTER FUNCTION rate_limiter.await_turn() OWNER TO owner;

CREATE FUNCTION rate_limiter.bound_prices() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF EXISTS (SELECT FROM rate_limiter.prices p WHERE p.namespace IN (SELECT n.namespace FROM new_rows n)
            GROUP BY p.namespace HAVING count(DISTINCT p.model) > 256) THEN
        RAISE EXCEPTION 'would be one of more than 256 models with prices in a namespace: delete the prices of others first'
            USING ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'prices', COLUMN = 'model',
            CONSTRAINT = 'prices_models';
    END IF;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.bound_prices() OWNER TO owner;

CREATE FUNCTION rate_limiter.canonical_endpoint(endpoint text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT regexp_replace(endpoint, '\{[^}]*\}', '{}', 'g')
$$;

ALTER FUNCTION rate_limiter.canonical_endpoint(endpoint text) OWNER TO owner;

CREATE FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    IF said ~ ('[\u0001-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160'
            '\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0'
            '\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a'
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
$_$;

ALTER FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) OWNER TO owner;

CREATE FUNCTION rate_limiter.check_names() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    col text;
BEGIN
    PERFORM rate_limiter.check_table('check_names', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    FOREACH col IN ARRAY TG_ARGV LOOP
        IF TG_OP = 'INSERT' OR to_jsonb(NEW) ->> col IS DISTINCT FROM to_jsonb(OLD) ->> col THEN
            PERFORM rate_limiter.check_actor(to_jsonb(NEW) ->> col, TG_TABLE_NAME, TG_TABLE_NAME || '_' || col);
        END IF;
    END LOOP;
    RETURN NEW;
END
$$;

ALTER FUNCTION rate_limiter.check_names() OWNER TO owner;

CREATE FUNCTION rate_limiter.check_table(called text, schema name, "table" name) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF schema <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function % is for tables of rate_limiter, not for %.%', called, schema, "table"
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END
$$;

ALTER FUNCTION rate_limiter.check_table(called text, schema name, "table" name) OWNER TO owner;

CREATE FUNCTION rate_limiter.check_value(valid boolean, problem text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF valid IS NOT TRUE THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

ALTER FUNCTION rate_limiter.check_value(valid boolean, problem text) OWNER TO owner;

CREATE FUNCTION rate_limiter.count_revision() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    NEW.revision := OLD.revision + 1;
    RETURN NEW;
END
$$;

ALTER FUNCTION rate_limiter.count_revision() OWNER TO owner;

CREATE FUNCTION rate_limiter.create_org_token(org text, name text, hash bytea, lifetime interval, OUT id bigint, OUT problem text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
$_$;

ALTER FUNCTION rate_limiter.create_org_token(org text, name text, hash bytea, lifetime interval, OUT id bigint, OUT problem text) OWNER TO owner;

CREATE FUNCTION rate_limiter.drop_old_reports() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    DELETE FROM rate_limiter.nodes n WHERE (n.reported_at, n.node) < (
        SELECT o.reported_at, o.node FROM rate_limiter.nodes o ORDER BY 1 DESC, 2 DESC OFFSET 1999 LIMIT 1);
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.drop_old_reports() OWNER TO owner;

CREATE FUNCTION rate_limiter.drop_recent_denials(most integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    dropped integer;
    batch   CONSTANT integer := least(greatest(drop_recent_denials.most, 0), 10000);
BEGIN
    WITH old AS (
        (SELECT d.id FROM rate_limiter.recent_denials d
        WHERE d.at < clock_timestamp() - interval '7 days' ORDER BY d.at, d.id LIMIT batch)
        UNION
        (SELECT o.id FROM (
            SELECT c.tenant, c.rows FROM rate_limiter.recent_denial_counts c WHERE c.rows > 5000
            ORDER BY c.rows DESC LIMIT 100
        ) c, LATERAL (
            SELECT d.id FROM rate_limiter.recent_denials d WHERE d.tenant = c.tenant
            ORDER BY d.at, d.id LIMIT least(c.rows - 5000, batch)
        ) o)
        UNION
        (SELECT d.id FROM rate_limiter.recent_denials d ORDER BY d.at, d.id
        LIMIT least(batch, greatest(0, (SELECT sum(c.rows) FROM rate_limiter.recent_denial_counts c) - 200000)))
    ), gone AS (
        DELETE FROM rate_limiter.recent_denials d WHERE d.id IN (SELECT o.id FROM old o LIMIT batch) RETURNING d.tenant
    ), sums AS (
        SELECT g.tenant, count(*) AS rows FROM gone g GROUP BY 1
    ), locked AS (
        SELECT c.tenant FROM rate_limiter.recent_denial_counts c JOIN sums s USING (tenant) ORDER BY 1 FOR UPDATE OF c
    ), counted AS (
        UPDATE rate_limiter.recent_denial_counts c SET rows = c.rows - s.rows FROM sums s JOIN locked l USING (tenant)
        WHERE c.tenant = s.tenant
    ) SELECT count(*) INTO dropped FROM gone;
    DELETE FROM rate_limiter.recent_denial_counts c WHERE c.rows <= 0;
    RETURN dropped;
END
$$;

ALTER FUNCTION rate_limiter.drop_recent_denials(most integer) OWNER TO owner;

CREATE FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) OWNER TO owner;

CREATE FUNCTION rate_limiter.is_address(ip text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN CASE family(ip::inet)
        WHEN 4 THEN host(ip::inet) = ip OR (network(ip::inet)::text = ip AND masklen(ip::inet) < 32)
        ELSE ip::inet = network(ip::inet) END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END
$$;

ALTER FUNCTION rate_limiter.is_address(ip text) OWNER TO owner;

CREATE FUNCTION rate_limiter.is_endpoint(endpoint text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    SELECT endpoint = '' OR (octet_length(endpoint) <= 1024 AND endpoint ~ '^[A-Z*-]+ /[^ ]*$')
$_$;

ALTER FUNCTION rate_limiter.is_endpoint(endpoint text) OWNER TO owner;

CREATE FUNCTION rate_limiter.keep_candidate() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('keep_candidate', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    IF TG_OP = 'INSERT' THEN
        NEW.created_by := rate_limiter.actor();
        NEW.reason := coalesce(rate_limiter.reason(), NEW.reason);
        NEW.created_at := clock_timestamp();
    ELSIF NEW.state <> OLD.state
        AND (OLD.state, NEW.state) IN (('open', 'promoted'), ('open', 'dropped'), ('promoted', 'rolled_back')) THEN
        NEW.ended_at := clock_timestamp();
        NEW.ended_by := rate_limiter.actor();
        NEW.end_reason := coalesce(rate_limiter.reason(), '');
    ELSIF OLD.state <> 'open' OR NEW.state <> 'open' OR NEW.name <> OLD.name THEN
        RAISE EXCEPTION 'the candidate % is %', OLD.name, OLD.state USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'candidates', CONSTRAINT = 'candidates_ended',
            HINT = 'make another candidate';
    END IF;
    IF TG_OP = 'INSERT' OR NEW.base_version <> OLD.base_version THEN
        SELECT v.version, coalesce((SELECT max(a.id) FROM rate_limiter.audit a), 0)
        INTO STRICT NEW.base_version, NEW.base_audit FROM rate_limiter.version v;
    END IF;
    RETURN NEW;
END
$$;

ALTER FUNCTION rate_limiter.keep_candidate() OWNER TO owner;

CREATE FUNCTION rate_limiter.keep_candidate_open() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    changed text;
BEGIN
    PERFORM rate_limiter.check_table('keep_candidate_open', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    changed := CASE TG_OP WHEN 'INSERT' THEN NEW.candidate ELSE OLD.candidate END;
    IF EXISTS (SELECT FROM rate_limiter.candidates c WHERE c.name = changed AND c.state <> 'open')
        OR TG_OP = 'UPDATE' AND NEW.candidate <> OLD.candidate THEN
        RAISE EXCEPTION 'the candidate % is not open', changed USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'candidates', CONSTRAINT = 'candidates_ended',
            HINT = 'make another candidate';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;

ALTER FUNCTION rate_limiter.keep_candidate_open() OWNER TO owner;

CREATE PROCEDURE rate_limiter.keep_record(IN target regclass, IN kind text, IN key text, IN tenant text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    EXECUTE format($triggers$
        CREATE TRIGGER a_queue BEFORE INSERT OR UPDATE OR DELETE ON %1$s EXECUTE FUNCTION rate_limiter.queue();
        CREATE TRIGGER b_unchanged BEFORE UPDATE ON %1$s
            FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
        CREATE TRIGGER c_revision BEFORE UPDATE ON %1$s FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();
        CREATE TRIGGER d_inserted AFTER INSERT ON %1$s REFERENCING NEW TABLE AS new_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER d_updated AFTER UPDATE ON %1$s REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER d_deleted AFTER DELETE ON %1$s REFERENCING OLD TABLE AS old_rows
            EXECUTE FUNCTION rate_limiter.record(%2$L, %3$L, %4$L);
        CREATE TRIGGER e_truncated BEFORE TRUNCATE ON %1$s
            EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');
    $triggers$, target, kind, key, tenant);
END
$_$;

ALTER PROCEDURE rate_limiter.keep_record(IN target regclass, IN kind text, IN key text, IN tenant text) OWNER TO owner;

CREATE FUNCTION rate_limiter.keep_token_name() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.keep_token_name() OWNER TO owner;

CREATE FUNCTION rate_limiter.keep_usage_partitions() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    today timestamp := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC');
    state rate_limiter.usage_state;
    level record;
    first timestamp;
    part  record;
BEGIN
    SELECT * INTO STRICT state FROM rate_limiter.usage_state FOR UPDATE;
    FOR level IN
        SELECT * FROM (VALUES
            ('usage_minutes', 'day', interval '1 day', interval '2 days', 'YYYYMMDD', state.hours_until),
            ('usage_hours', 'month', interval '1 month', interval '60 days', 'YYYYMM', state.days_until),
            ('usage_days', 'year', interval '1 year', interval '3 years', 'YYYY', 'infinity')
        ) levels (name, unit, span, kept, pattern, until)
    LOOP
        first := today - interval '2 days';
        IF level.name <> 'usage_minutes' THEN -- what is still to be summed up goes there
            first := least(first, state.days_until AT TIME ZONE 'UTC');
        END IF;
        FOR part IN
            SELECT level.name || '_' || to_char(at, level.pattern) AS name, at AS begins, at + level.span AS ends
            FROM generate_series(date_trunc(level.unit, first), today + 2 * level.span, level.span) at
        LOOP
            CONTINUE WHEN to_regclass('rate_limiter.' || part.name) IS NOT NULL;
            EXECUTE format('CREATE TABLE rate_limiter.%I (LIKE rate_limiter.%I INCLUDING ALL)', part.name, level.name);
            EXECUTE format('ALTER TABLE rate_limiter.%I ATTACH PARTITION rate_limiter.%I FOR VALUES FROM (%L) TO (%L)',
                level.name, part.name, to_char(part.begins, 'YYYY-MM-DD "00:00:00+00"'),
                to_char(part.ends, 'YYYY-MM-DD "00:00:00+00"'));
        END LOOP;
        FOR part IN
            SELECT c.relname AS name,
                to_date(substr(c.relname, length(level.name) + 2), level.pattern) + level.span AS ends
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = ('rate_limiter.' || level.name)::regclass
                AND c.relname ~ ('^' || level.name || '_[0-9]+$')
        LOOP
            CONTINUE WHEN part.ends > today - level.kept OR part.ends AT TIME ZONE 'UTC' > level.until;
            EXECUTE format('DROP TABLE rate_limiter.%I', part.name);
        END LOOP;
    END LOOP;
END
$_$;

ALTER FUNCTION rate_limiter.keep_usage_partitions() OWNER TO owner;

CREATE FUNCTION rate_limiter.lift_penalty(tenant text, reason text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.lift_penalty(tenant text, reason text) OWNER TO owner;

CREATE FUNCTION rate_limiter.order_usage_minutes(first timestamp with time zone, until timestamp with time zone) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    WITH gone AS (
        DELETE FROM rate_limiter.usage_minutes m WHERE m.at >= $1 AND m.at < $2 RETURNING m.*
    ), stored AS (
        INSERT INTO rate_limiter.usage_minutes SELECT g.* FROM gone g ORDER BY g.tenant, g.at RETURNING 1
    ) SELECT count(*) FROM stored
$_$;

ALTER FUNCTION rate_limiter.order_usage_minutes(first timestamp with time zone, until timestamp with time zone) OWNER TO owner;

CREATE FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamp with time zone, reason text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamp with time zone, reason text) OWNER TO owner;

CREATE FUNCTION rate_limiter.publish_changes() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('publish_changes', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
    SELECT 'audit-' || n.id, '/control', 'io.github.tenant-rate-limiting.policy.updated', n.at, n.tenant,
        json_build_object('version', 1, 'policy_version', n.version, 'kind', n.kind, 'operation', n.operation,
            'key', n.key, 'org', n.tenant, 'actor', n.actor, 'reason', n.reason, 'before', n.before, 'after', n.after)
    FROM new_rows n WHERE n.kind IN ('tier', 'tenant', 'policy', 'override', 'cost', 'price') ORDER BY n.id;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.publish_changes() OWNER TO owner;

CREATE FUNCTION rate_limiter.queue() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('queue', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    PERFORM rate_limiter.await_turn();
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.queue() OWNER TO owner;

CREATE FUNCTION rate_limiter.reason() RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT nullif(btrim(current_setting('rate_limiter.reason', true)), '')
$$;

ALTER FUNCTION rate_limiter.reason() OWNER TO owner;

CREATE FUNCTION rate_limiter.record() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    pairs   text;
    changed boolean;
BEGIN
    PERFORM rate_limiter.check_table('record', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    pairs := CASE TG_OP
        WHEN 'INSERT' THEN 'SELECT NULL::jsonb AS before, to_jsonb(n) AS after FROM new_rows n'
        WHEN 'DELETE' THEN 'SELECT to_jsonb(o) AS before, NULL::jsonb AS after FROM old_rows o'
        ELSE format('SELECT to_jsonb(o) AS before, to_jsonb(n) AS after
            FROM old_rows o FULL JOIN new_rows n ON o.%1$I = n.%1$I', TG_ARGV[1])
    END;
    EXECUTE format('SELECT EXISTS (%s)', pairs) INTO changed;
    IF NOT changed THEN
        RETURN NULL;
    END IF;
    EXECUTE format($record$
        WITH written AS (
            INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
            SELECT $1, rate_limiter.actor(), coalesce(rate_limiter.reason(), after ->> 'reason', ''), $2,
                CASE WHEN before IS NULL THEN 'insert' WHEN after IS NULL THEN 'delete' ELSE 'update' END,
                coalesce(after, before) ->> $3, coalesce(coalesce(after, before) ->> $4, ''), before, after
            FROM (%s) pairs
            RETURNING version, kind, operation, key, tenant
        )
        INSERT INTO rate_limiter.changes (version, kind, operation, key, tenant)
        SELECT version, kind, operation, key, tenant FROM written
    $record$, pairs) USING rate_limiter.take_version(), TG_ARGV[0], TG_ARGV[1], TG_ARGV[2];
    RETURN NULL;
END
$_$;

ALTER FUNCTION rate_limiter.record() OWNER TO owner;

CREATE FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'action', operation, key, tenant,
        details
    FROM rate_limiter.version v;
END
$$;

ALTER FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) OWNER TO owner;

CREATE FUNCTION rate_limiter.record_token() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('record_token', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'token', lower(TG_OP), NEW.name,
        NEW.org, CASE TG_OP WHEN 'UPDATE' THEN to_jsonb(OLD) - 'hash' END, to_jsonb(NEW) - 'hash'
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.record_token() OWNER TO owner;

CREATE FUNCTION rate_limiter.record_webhook() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    of rate_limiter.webhooks;
BEGIN
    PERFORM rate_limiter.check_table('record_webhook', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    of := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', lower(TG_OP), of.id, of.org,
        CASE WHEN TG_OP <> 'INSERT'
            THEN jsonb_build_object('url', OLD.url, 'types', OLD.types, 'enabled', OLD.enabled) END,
        CASE WHEN TG_OP <> 'DELETE'
            THEN jsonb_build_object('url', NEW.url, 'types', NEW.types, 'enabled', NEW.enabled) END
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.record_webhook() OWNER TO owner;

CREATE FUNCTION rate_limiter.record_webhook_secret() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('record_webhook_secret', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', 'secret', w.id, w.org
    FROM rate_limiter.version v, rate_limiter.webhooks w WHERE w.id = NEW.webhook;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.record_webhook_secret() OWNER TO owner;

CREATE FUNCTION rate_limiter.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RAISE EXCEPTION '% of % leaves no record', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = TG_ARGV[0];
END
$$;

ALTER FUNCTION rate_limiter.refuse() OWNER TO owner;

CREATE FUNCTION rate_limiter.remember_override() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM rate_limiter.check_table('remember_override', TG_TABLE_SCHEMA, TG_TABLE_NAME);
    INSERT INTO rate_limiter.override_history
    SELECT h.* FROM old_rows o, jsonb_populate_record(NULL::rate_limiter.override_history, to_jsonb(o)
        || jsonb_build_object('ended_at', clock_timestamp(), 'ended_by', rate_limiter.actor(),
            'end_reason', rate_limiter.reason())) h;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.remember_override() OWNER TO owner;

CREATE FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    most  CONSTANT bigint := 200000;
    now   CONSTANT timestamptz := clock_timestamp();
    began timestamptz;
    room  bigint;
    added bigint;
    lost  bigint;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_candidate.source) BETWEEN 1 AND 256
            AND report_candidate.seq >= 1, 'the source must have a name of 1 to 256 bytes, and seq be at least 1'),
        rate_limiter.check_value(octet_length(report_candidate.counts::text) <= 4194304
            AND json_typeof(report_candidate.counts) = 'array', 'the counts must be an array of at most 4194304 bytes'),
        rate_limiter.check_value(report_candidate.age IS NOT NULL, 'the age must be given');
    began := now - least(greatest(report_candidate.age, interval '0'), interval '1 day');
    PERFORM rate_limiter.check_value(EXISTS (SELECT FROM rate_limiter.candidates c
            WHERE c.name = report_candidate.candidate AND (c.ended_at IS NULL OR c.ended_at > now - interval '1 hour')),
        format('there is no candidate %s, or it has ended', report_candidate.candidate));
    INSERT INTO rate_limiter.candidate_reports (candidate) VALUES (report_candidate.candidate) ON CONFLICT DO NOTHING;
    SELECT most - r.counted INTO STRICT room FROM rate_limiter.candidate_reports r
    WHERE r.candidate = report_candidate.candidate FOR UPDATE; -- one batch after the other
    PERFORM rate_limiter.check_value(EXISTS (SELECT FROM rate_limiter.candidate_sources s
            WHERE (s.candidate, s.source) = (report_candidate.candidate, report_candidate.source)) OR 10000 >
            (SELECT count(*) FROM rate_limiter.candidate_sources s WHERE s.candidate = report_candidate.candidate),
        format('too many processes have reported candidate %s', report_candidate.candidate));
    INSERT INTO rate_limiter.candidate_sources AS s (candidate, source, login, last_seq, first_at, last_at)
    VALUES (report_candidate.candidate, report_candidate.source, session_user, report_candidate.seq, began, now)
    ON CONFLICT (candidate, source) DO UPDATE SET last_seq = excluded.last_seq, last_at = excluded.last_at
    WHERE s.last_seq < excluded.last_seq AND s.login = excluded.login;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH valid AS (
        SELECT c.tenant, c.endpoint, c.policy, sum(c.requests)::bigint AS requests,
            sum(c.active_only)::bigint AS active_only, sum(c.candidate_only)::bigint AS candidate_only,
            sum(c."both")::bigint AS "both",
            coalesce((array_agg(c.examples) FILTER (WHERE json_typeof(c.examples) = 'array'))[1], '[]') AS examples
        FROM json_to_recordset(report_candidate.counts) AS c(tenant text, endpoint text, policy text, requests bigint,
            active_only bigint, candidate_only bigint, "both" bigint, examples json)
        WHERE octet_length(c.tenant) <= 1024 AND octet_length(c.endpoint) <= 1024 AND octet_length(c.policy) <= 64
            AND least(c.active_only, c.candidate_only, c."both") >= 0
            AND c.requests BETWEEN 1 AND 1000000000000
            AND c.active_only::numeric + c.candidate_only + c."both" <= c.requests
            AND octet_length(coalesce(c.examples::text, '')) <= 65536
        GROUP BY 1, 2, 3
    ), placed AS (
        SELECT v.*, k.candidate IS NULL AS is_new,
            row_number() OVER (PARTITION BY k.candidate IS NULL ORDER BY v.policy, v.tenant, v.endpoint) AS place
        FROM valid v LEFT JOIN rate_limiter.candidate_counts k
            ON (k.candidate, k.tenant, k.endpoint, k.policy)
                = (report_candidate.candidate, v.tenant, v.endpoint, v.policy)
    ), stored AS (
        INSERT INTO rate_limiter.candidate_counts AS c (candidate, tenant, endpoint, policy, requests, active_only,
            candidate_only, "both", examples, first_at, last_at)
        SELECT report_candidate.candidate, p.tenant, p.endpoint, p.policy, p.requests, p.active_only, p.candidate_only,
            p."both", p.examples, began, now
        FROM placed p WHERE NOT p.is_new OR p.place <= room
        ON CONFLICT (candidate, tenant, endpoint, policy) DO UPDATE
        SET requests = c.requests + excluded.requests, active_only = c.active_only + excluded.active_only,
            candidate_only = c.candidate_only + excluded.candidate_only, "both" = c."both" + excluded."both",
            last_at = excluded.last_at,
            examples = CASE WHEN json_array_length(excluded.examples) = 0 THEN c.examples ELSE (
                SELECT json_agg(e.one ORDER BY e.age, e.place) FROM (
                    SELECT 0 AS age, n.place, n.one
                    FROM json_array_elements(excluded.examples) WITH ORDINALITY n(one, place)
                    UNION ALL
                    SELECT 1, o.place, o.one FROM json_array_elements(c.examples) WITH ORDINALITY o(one, place)
                    ORDER BY 1, 2 LIMIT 10
                ) e) END
    ) SELECT count(*) FILTER (WHERE p.is_new AND p.place <= room), count(*) FILTER (WHERE p.is_new AND p.place > room)
    INTO STRICT added, lost FROM placed p;
    UPDATE rate_limiter.candidate_reports r SET counted = r.counted + added, dropped = r.dropped + lost
    WHERE r.candidate = report_candidate.candidate AND added + lost > 0;
    RETURN true;
END
$$;

ALTER FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json) OWNER TO owner;

CREATE FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    denial  CONSTANT text := 'io.github.tenant-rate-limiting.denial';
    waiting bigint;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_denials.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(octet_length(report_denials.denials::text) <= 1048576
            AND json_typeof(report_denials.denials) = 'array', 'the denials must be an array of at most 1048576 bytes');
    IF NOT EXISTS (SELECT FROM rate_limiter.webhooks w
        WHERE w.enabled AND (w.types = '{}' OR denial = ANY (w.types))) THEN
        kept := -1;
        RETURN;
    END IF;
    SELECT count(*) INTO waiting FROM (SELECT FROM rate_limiter.webhook_denials LIMIT 20000) first;
    IF waiting >= 20000 THEN
        RAISE EXCEPTION 'too many denials wait to be sent to webhooks' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve sends them, with the rights of the role keeper';
    END IF;
    WITH offered AS (
        SELECT r.*, row_number() OVER (PARTITION BY r.tenant ORDER BY r.line) AS place
        FROM ROWS FROM (json_to_recordset(report_denials.denials)
            AS (event text, at timestamptz, tenant text, data json))
            WITH ORDINALITY AS r(event, at, tenant, data, line)
    ), held AS MATERIALIZED (
        SELECT o.tenant, (
            SELECT count(*) FROM (SELECT FROM rate_limiter.webhook_denials w WHERE w.tenant = o.tenant LIMIT 1000) first
        ) AS rows
        FROM (SELECT DISTINCT d.tenant FROM offered d) o
    ), wanted AS (
        SELECT d.*, d.place + h.rows <= 1000 AS fits
        FROM offered d JOIN held h ON h.tenant = d.tenant
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND d.at IS NOT NULL AND octet_length(d.tenant) <= 1024
            AND json_typeof(d.data) = 'object' AND octet_length(d.data::text) <= 65536
            AND EXISTS (
                SELECT FROM rate_limiter.webhooks w
                WHERE w.enabled AND w.org IN ('', d.tenant) AND (w.types = '{}' OR denial = ANY (w.types)))
    ), added AS (
        INSERT INTO rate_limiter.webhook_denials (login, node, event, at, tenant, data)
        SELECT session_user, report_denials.node, d.event, d.at, d.tenant, d.data FROM wanted d WHERE d.fits
        ORDER BY d.line -- they are sent in the order of their ids
        ON CONFLICT DO NOTHING RETURNING 1
    ) SELECT (SELECT count(*) FROM added), (
            SELECT array_agg(d.event ORDER BY d.line) FROM wanted d WHERE NOT d.fits AND NOT EXISTS (
                SELECT FROM rate_limiter.webhook_denials w WHERE w.node = report_denials.node AND w.event = d.event)
        ) INTO kept, dropped;
END
$$;

ALTER FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[]) OWNER TO owner;

CREATE FUNCTION rate_limiter.report_recent_denials(node text, denials json) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    added integer;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_recent_denials.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(octet_length(report_recent_denials.denials::text) <= 1048576
            AND json_typeof(report_recent_denials.denials) = 'array',
            'the denials must be an array of at most 1048576 bytes');
    PERFORM rate_limiter.check_value(json_array_length(report_recent_denials.denials) <= 500,
        'the denials must be at most 500');
    IF (SELECT sum(c.rows) FROM rate_limiter.recent_denial_counts c) >= 250000 THEN
        RAISE EXCEPTION 'there are too many recent denials' USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve drops the oldest, with the rights of the role keeper; ratelimit tidy does too';
    END IF;
    WITH offered AS (
        SELECT d.*, row_number() OVER (PARTITION BY d.tenant ORDER BY d.ordinality) AS place
        FROM ROWS FROM (json_to_recordset(report_recent_denials.denials) AS (event text, age bigint, tenant text,
            endpoint text, policy text, scope text, "limit" bigint, window_size bigint, reason text, shadow boolean,
            count bigint, tenant_count bigint, "user" text, ip text, retry_after bigint, tier text, policy_for text,
            policy_id bigint, policy_version bigint, capacity bigint, cost bigint, remaining bigint, override bigint,
            penalty bigint, unit text, request_ids text[], hidden_ids text[]))
            WITH ORDINALITY AS d
        WHERE octet_length(d.event) BETWEEN 1 AND 256 AND octet_length(d.tenant) <= 1024
            AND octet_length(d.endpoint) <= 1024 AND octet_length(d.policy) <= 256 AND octet_length(d.scope) <= 64
            AND octet_length(d.reason) BETWEEN 1 AND 64
            AND octet_length(d."user") <= 1024 AND octet_length(d.ip) <= 1024
            AND d.age IS NOT NULL AND d.shadow IS NOT NULL AND d.count BETWEEN 1 AND 1000000000000
            AND d.tenant_count BETWEEN 0 AND d.count
            AND least(d."limit", d.window_size, d.retry_after, d.policy_id, d.policy_version, d.capacity, d.cost,
                d.remaining, d.override, d.penalty, 0) = 0
            AND coalesce(octet_length(d.tier), 0) <= 1024 AND coalesce(octet_length(d.policy_for), 0) <= 1024
            AND greatest(cardinality(d.request_ids), cardinality(d.hidden_ids), 0) <= 32
            AND octet_length(concat(array_to_string(d.request_ids, ''), array_to_string(d.hidden_ids, ''))) <= 4096
    ), fits AS (
        SELECT o.* FROM offered o LEFT JOIN rate_limiter.recent_denial_counts c ON c.tenant = o.tenant
        WHERE o.place + coalesce(c.rows, 0) <= 6000
    ), stored AS (
        INSERT INTO rate_limiter.recent_denials (login, node, event, at, tenant, endpoint, policy, scope, "limit",
            window_size, reason, shadow, count, tenant_count, "user", ip, retry_after, tier, policy_for, policy_id,
            policy_version, capacity, cost, remaining, override, penalty, unit, request_ids, hidden_ids)
        SELECT session_user, report_recent_denials.node, f.event,
            now - least(greatest(f.age, 0), 3600000000) * interval '1 microsecond',
            f.tenant, f.endpoint, f.policy, f.scope, f."limit", f.window_size, f.reason, f.shadow, f.count,
            f.tenant_count, f."user", f.ip, f.retry_after, f.tier, f.policy_for, f.policy_id, f.policy_version,
            f.capacity, f.cost, f.remaining, f.override, f.penalty, left(f.unit, 16), f.request_ids, f.hidden_ids
        FROM fits f
        ORDER BY f.ordinality
        ON CONFLICT (node, event) DO NOTHING RETURNING tenant
    ), counted AS (
        INSERT INTO rate_limiter.recent_denial_counts AS c (tenant, rows)
        SELECT s.tenant, count(*) FROM stored s GROUP BY 1 ORDER BY 1 -- in one order, so that no two reports deadlock
        ON CONFLICT (tenant) DO UPDATE SET rows = c.rows + excluded.rows
    ) SELECT count(*) INTO added FROM stored;
    RETURN added;
END
$$;

ALTER FUNCTION rate_limiter.report_recent_denials(node text, denials json) OWNER TO owner;

CREATE FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    size   bigint := octet_length(payload);
    at     timestamptz := clock_timestamp();
    own    rate_limiter.usage_nodes;
    nodes  bigint;
    bytes  numeric;
    stored bigint;
BEGIN
    PERFORM rate_limiter.check_value(octet_length(report_usage.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(report_usage.epoch ~ '^[0-9a-f]{16}$', 'the epoch must be 16 hexadecimal digits'),
        rate_limiter.check_value(report_usage.seq >= 1, 'seq must be at least 1'),
        rate_limiter.check_value(size BETWEEN 1 AND 1048576, 'the payload must have 1 to 1048576 bytes'),
        rate_limiter.check_value(report_usage.age IS NOT NULL, 'the age must be given');
    SELECT * INTO own FROM rate_limiter.usage_nodes n WHERE n.login = session_user AND n.node = report_usage.node;
    SELECT count(*), coalesce(sum(n.bytes), 0) INTO nodes, bytes
    FROM rate_limiter.usage_nodes n WHERE n.login = session_user;
    IF own.batches >= 40000 OR own.bytes + size > 536870912 OR bytes + size > 8589934592
        OR own.node IS NULL AND nodes >= 2000 THEN
        RAISE EXCEPTION 'too much usage of % waits to be unpacked', CASE
            WHEN own.node IS NULL AND nodes >= 2000 THEN 'too many nodes'
            WHEN bytes + size > 8589934592 THEN 'all nodes'
            ELSE 'this node' END
            USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve or ratelimit tidy unpacks it, with the rights of the role keeper';
    END IF;
    INSERT INTO rate_limiter.usage_batches (node, epoch, seq, login, began, received_at, payload)
    VALUES (report_usage.node, report_usage.epoch, report_usage.seq, session_user,
        at - least(greatest(age, interval '0'), interval '30 days'), at, report_usage.payload)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored = 0 THEN
        RETURN false;
    END IF;
    INSERT INTO rate_limiter.usage_nodes AS n (login, node, batches, bytes, seen_at)
    VALUES (session_user, report_usage.node, 1, size, at)
    ON CONFLICT (login, node) DO UPDATE
    SET batches = n.batches + 1, bytes = n.bytes + excluded.bytes, seen_at = excluded.seen_at;
    RETURN true;
END
$_$;

ALTER FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea) OWNER TO owner;

CREATE FUNCTION rate_limiter.revoke_org_token(org text, name text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.revoke_org_token(org text, name text) OWNER TO owner;

CREATE FUNCTION rate_limiter.rotate_org_token(org text, name text, hash bytea, overlap interval, OUT id bigint, OUT problem text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

ALTER FUNCTION rate_limiter.rotate_org_token(org text, name text, hash bytea, overlap interval, OUT id bigint, OUT problem text) OWNER TO owner;

CREATE FUNCTION rate_limiter.take_version() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    taken bigint;
BEGIN
    SELECT v.version INTO taken FROM rate_limiter.version v WHERE v.transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        UPDATE rate_limiter.version v
        SET version = v.version + 1, transaction = pg_current_xact_id(), at = clock_timestamp()
        RETURNING v.version INTO STRICT taken;
    END IF;
    RETURN taken;
END
$$;

ALTER FUNCTION rate_limiter.take_version() OWNER TO owner;

CREATE FUNCTION rate_limiter.token_org(org text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT CASE WHEN length(e.text) <= 128 THEN e.text ELSE '~' || encode(sha256(convert_to(org, 'UTF8')), 'hex') END
    FROM (
        SELECT string_agg(CASE WHEN c ~ '[A-Za-z0-9_.@-]' COLLATE "C" THEN c
            ELSE regexp_replace(encode(convert_to(c, 'UTF8'), 'hex'), '(..)', '%\1', 'g') END, '' ORDER BY n) AS text
        FROM regexp_split_to_table(org, '') WITH ORDINALITY s(c, n)
    ) e
$$;

ALTER FUNCTION rate_limiter.token_org(org text) OWNER TO owner;

CREATE FUNCTION rate_limiter.usage_backlog() RETURNS interval
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT coalesce((
        SELECT clock_timestamp() - b.received_at FROM rate_limiter.usage_batches b WHERE b.fault = ''
        ORDER BY b.began LIMIT 1
    ), '0')
$$;

ALTER FUNCTION rate_limiter.usage_backlog() OWNER TO owner;

CREATE FUNCTION rate_limiter.want_reason() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF rate_limiter.reason() IS NULL THEN
        RAISE EXCEPTION '% of % needs a reason', TG_OP, TG_TABLE_NAME USING
            ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
            CONSTRAINT = 'overrides_change_reason', HINT = 'SET LOCAL rate_limiter.reason = ''why''';
    END IF;
    RETURN NULL;
END
$$;

ALTER FUNCTION rate_limiter.want_reason() OWNER TO owner;

CREATE TABLE rate_limiter.abuse_denials (
    at timestamp with time zone NOT NULL,
    tenant text NOT NULL,
    limited bigint NOT NULL,
    penalized bigint NOT NULL,
    unavailable bigint NOT NULL,
    users bytea NOT NULL,
    addresses bytea NOT NULL,
    credentials bytea NOT NULL
);

ALTER TABLE rate_limiter.abuse_denials OWNER TO owner;

CREATE TABLE rate_limiter.abuse_state (
    one boolean DEFAULT true NOT NULL,
    scored_until timestamp with time zone NOT NULL,
    CONSTRAINT abuse_state_one_row CHECK (one)
);

ALTER TABLE rate_limiter.abuse_state OWNER TO owner;

CREATE TABLE rate_limiter.abuse_steps (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    tenant text NOT NULL,
    from_step text NOT NULL,
    to_step text NOT NULL,
    mode text NOT NULL,
    reason text NOT NULL
);

ALTER TABLE rate_limiter.abuse_steps OWNER TO owner;

ALTER TABLE rate_limiter.abuse_steps ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.abuse_steps_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.abuse_tenants (
    tenant text NOT NULL,
    state jsonb NOT NULL,
    step text GENERATED ALWAYS AS ((state ->> 'step'::text)) STORED NOT NULL,
    mode text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    scored_at timestamp with time zone NOT NULL,
    forgiven_until timestamp with time zone,
    override bigint,
    override_until timestamp with time zone,
    CONSTRAINT abuse_tenants_mode CHECK ((mode = ANY (ARRAY['shadow'::text, 'enforce'::text]))),
    CONSTRAINT abuse_tenants_step CHECK ((step = ANY (ARRAY['none'::text, 'warn'::text, 'half'::text, 'tenth'::text, 'ban_5m'::text, 'ban_1h'::text]))),
    CONSTRAINT abuse_tenants_tenant CHECK (((octet_length(tenant) >= 1) AND (octet_length(tenant) <= 128)))
);

ALTER TABLE rate_limiter.abuse_tenants OWNER TO owner;

CREATE TABLE rate_limiter.answers (
    token text NOT NULL,
    key text NOT NULL,
    request bytea NOT NULL,
    answer json NOT NULL,
    version bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT answers_key CHECK ((key ~ '^[ -~]{1,128}$'::text)),
    CONSTRAINT answers_request CHECK ((octet_length(request) = 32)),
    CONSTRAINT answers_token CHECK (((octet_length(token) >= 1) AND (octet_length(token) <= 256)))
);

ALTER TABLE rate_limiter.answers OWNER TO owner;

CREATE TABLE rate_limiter.audit (
    id bigint NOT NULL,
    version bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    login text DEFAULT SESSION_USER NOT NULL,
    reason text NOT NULL,
    kind text NOT NULL,
    operation text NOT NULL,
    key text NOT NULL,
    tenant text NOT NULL,
    before jsonb,
    after jsonb
);

ALTER TABLE rate_limiter.audit OWNER TO owner;

ALTER TABLE rate_limiter.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.candidate_counts (
    candidate text NOT NULL,
    tenant text NOT NULL,
    endpoint text NOT NULL,
    policy text NOT NULL,
    requests bigint NOT NULL,
    active_only bigint NOT NULL,
    candidate_only bigint NOT NULL,
    "both" bigint NOT NULL,
    examples json NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL
);

ALTER TABLE rate_limiter.candidate_counts OWNER TO owner;

CREATE TABLE rate_limiter.candidate_policies (
    id bigint NOT NULL,
    candidate text NOT NULL,
    namespace text DEFAULT 'default'::text NOT NULL,
    name text NOT NULL,
    tier text DEFAULT ''::text NOT NULL,
    tenant text DEFAULT ''::text NOT NULL,
    endpoint text DEFAULT ''::text NOT NULL,
    body jsonb,
    was jsonb,
    revision bigint DEFAULT 1 NOT NULL,
    "user" text DEFAULT ''::text NOT NULL,
    credential text DEFAULT ''::text NOT NULL,
    ip text DEFAULT ''::text NOT NULL,
    "for" text DEFAULT ''::text NOT NULL,
    CONSTRAINT candidate_policies_body CHECK (((body IS NULL) OR COALESCE(((jsonb_typeof(body) = 'object'::text) AND (octet_length((body)::text) <= 32768) AND (((body ->> 'namespace'::text) = namespace) AND ((body ->> 'name'::text) = name) AND (COALESCE((body ->> 'tier'::text), ''::text) = tier) AND (COALESCE((body ->> 'tenant'::text), ''::text) = tenant) AND (COALESCE((body ->> 'endpoint'::text), ''::text) = endpoint))), false))),
    CONSTRAINT candidate_policies_body_target CHECK (((body IS NULL) OR ((COALESCE((body ->> 'user'::text), ''::text) = "user") AND (COALESCE((body ->> 'credential'::text), ''::text) = credential) AND (COALESCE((body ->> 'ip'::text), ''::text) = ip) AND (COALESCE((body ->> 'for'::text), ''::text) = "for")))),
    CONSTRAINT candidate_policies_credential CHECK ((octet_length(credential) <= 128)),
    CONSTRAINT candidate_policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT candidate_policies_for CHECK (("for" = ANY (ARRAY[''::text, 'all'::text, 'anonymous'::text]))),
    CONSTRAINT candidate_policies_ip CHECK (((ip = ''::text) OR ((octet_length(ip) <= 64) AND rate_limiter.is_address(ip)))),
    CONSTRAINT candidate_policies_name CHECK ((name ~ '^[A-Za-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT candidate_policies_namespace CHECK ((namespace ~ '^[A-Za-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT candidate_policies_target CHECK (((("user" = ''::text) OR (tenant <> ''::text)) AND (((((((tier <> ''::text))::integer + ((tenant <> ''::text))::integer) + ((credential <> ''::text))::integer) + ((ip <> ''::text))::integer) + (("for" <> ''::text))::integer) = 1))),
    CONSTRAINT candidate_policies_tenant CHECK ((octet_length(tenant) <= 128)),
    CONSTRAINT candidate_policies_tier CHECK ((octet_length(tier) <= 64)),
    CONSTRAINT candidate_policies_user CHECK ((octet_length("user") <= 128))
);

ALTER TABLE rate_limiter.candidate_policies OWNER TO owner;

ALTER TABLE rate_limiter.candidate_policies ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.candidate_policies_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.candidate_reports (
    candidate text NOT NULL,
    counted bigint DEFAULT 0 NOT NULL,
    dropped bigint DEFAULT 0 NOT NULL
);

ALTER TABLE rate_limiter.candidate_reports OWNER TO owner;

CREATE TABLE rate_limiter.candidate_sources (
    candidate text NOT NULL,
    source text NOT NULL,
    login text NOT NULL,
    last_seq bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL
);

ALTER TABLE rate_limiter.candidate_sources OWNER TO owner;

CREATE TABLE rate_limiter.candidate_tenants (
    candidate text NOT NULL,
    tenant text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT candidate_tenants_tenant CHECK (((octet_length(tenant) >= 1) AND (octet_length(tenant) <= 128)))
);

ALTER TABLE rate_limiter.candidate_tenants OWNER TO owner;

CREATE TABLE rate_limiter.candidates (
    name text NOT NULL,
    state text DEFAULT 'open'::text NOT NULL,
    percent integer DEFAULT 0 NOT NULL,
    base_version bigint DEFAULT 0 NOT NULL,
    base_audit bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text DEFAULT ''::text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    ended_at timestamp with time zone,
    ended_by text DEFAULT ''::text NOT NULL,
    end_reason text DEFAULT ''::text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT candidates_ended_at CHECK (((state = 'open'::text) = (ended_at IS NULL))),
    CONSTRAINT candidates_name CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'::text)),
    CONSTRAINT candidates_percent CHECK (((percent >= 0) AND (percent <= 100))),
    CONSTRAINT candidates_state CHECK ((state = ANY (ARRAY['open'::text, 'promoted'::text, 'rolled_back'::text, 'dropped'::text])))
);

ALTER TABLE rate_limiter.candidates OWNER TO owner;

CREATE TABLE rate_limiter.changes (
    version bigint NOT NULL,
    number bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    kind text NOT NULL,
    operation text NOT NULL,
    key text NOT NULL,
    tenant text NOT NULL
);

ALTER TABLE rate_limiter.changes OWNER TO owner;

ALTER TABLE rate_limiter.changes ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.changes_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.costs (
    id bigint NOT NULL,
    namespace text DEFAULT 'default'::text NOT NULL,
    endpoint text NOT NULL,
    cost bigint NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT costs_cost CHECK (((cost >= 0) AND (cost <= 1000000000))),
    CONSTRAINT costs_endpoint CHECK (((endpoint <> ''::text) AND rate_limiter.is_endpoint(endpoint))),
    CONSTRAINT costs_namespace CHECK ((namespace ~ '^[A-Za-z0-9_.-]{1,64}$'::text))
);

ALTER TABLE rate_limiter.costs OWNER TO owner;

ALTER TABLE rate_limiter.costs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.costs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.nodes (
    node text NOT NULL,
    version bigint NOT NULL,
    enforced_at timestamp with time zone NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    source text DEFAULT 'postgres'::text NOT NULL,
    faults jsonb DEFAULT '[]'::jsonb NOT NULL,
    first_reported_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    leases bigint,
    redis jsonb,
    zone_data text,
    took bigint[],
    CONSTRAINT nodes_faults CHECK ((jsonb_typeof(faults) = 'array'::text)),
    CONSTRAINT nodes_faults_size CHECK ((octet_length((faults)::text) <= 65536)),
    CONSTRAINT nodes_instants CHECK (((LEAST(enforced_at, first_reported_at, reported_at) >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (GREATEST(enforced_at, first_reported_at, reported_at) < '9999-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT nodes_leases CHECK ((leases >= 0)),
    CONSTRAINT nodes_node CHECK (((octet_length(node) >= 1) AND (octet_length(node) <= 256))),
    CONSTRAINT nodes_redis CHECK (((jsonb_typeof(redis) = 'array'::text) AND (NOT (redis @? '$[*]?(!(@.type() == "object" && @."name".type() == "string"))'::jsonpath)) AND (octet_length((redis)::text) <= 65536))),
    CONSTRAINT nodes_redis_away CHECK ((NOT (redis @? 'strict $[*]?(@.type() != "object" || exists (@."away_since") && !(@."away_since".type() == "string" && @."away_since" like_regex "^(19[7-9]|[2-8][0-9][0-9])[0-9]-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-2][0-9]:[0-5][0-9])$"))'::jsonpath))),
    CONSTRAINT nodes_source CHECK ((source = ANY (ARRAY['postgres'::text, 'disk'::text, 'config'::text]))),
    CONSTRAINT nodes_took CHECK (((cardinality(took) <= 32) AND (array_ndims(took) = 1) AND (array_position(took, NULL::bigint) IS NULL) AND (0 <= ALL (took)))),
    CONSTRAINT nodes_version CHECK ((version >= 0)),
    CONSTRAINT nodes_zone_data CHECK ((octet_length(zone_data) <= 64))
);

ALTER TABLE rate_limiter.nodes OWNER TO owner;

CREATE TABLE rate_limiter.outbox (
    id bigint NOT NULL,
    "position" bigint,
    added_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    event text NOT NULL,
    source text NOT NULL,
    type text NOT NULL,
    at timestamp with time zone NOT NULL,
    tenant text NOT NULL,
    data json NOT NULL,
    CONSTRAINT outbox_data CHECK ((octet_length((data)::text) <= 262144)),
    CONSTRAINT outbox_event CHECK (((octet_length(event) >= 1) AND (octet_length(event) <= 1024))),
    CONSTRAINT outbox_source CHECK (((octet_length(source) >= 1) AND (octet_length(source) <= 1024))),
    CONSTRAINT outbox_type CHECK (((octet_length(type) >= 1) AND (octet_length(type) <= 128)))
);

ALTER TABLE rate_limiter.outbox OWNER TO owner;

CREATE TABLE rate_limiter.outbox_cursors (
    consumer text NOT NULL,
    "position" bigint NOT NULL,
    dropped bigint DEFAULT 0 NOT NULL,
    moved_at timestamp with time zone NOT NULL,
    CONSTRAINT outbox_cursors_consumer CHECK (((octet_length(consumer) >= 1) AND (octet_length(consumer) <= 64)))
);

ALTER TABLE rate_limiter.outbox_cursors OWNER TO owner;

ALTER TABLE rate_limiter.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.outbox_state (
    one boolean DEFAULT true NOT NULL,
    last bigint DEFAULT 0 NOT NULL,
    deleted bigint DEFAULT 0 NOT NULL,
    CONSTRAINT outbox_state_one_row CHECK (one),
    CONSTRAINT outbox_state_order CHECK (((deleted >= 0) AND (deleted <= last)))
);

ALTER TABLE rate_limiter.outbox_state OWNER TO owner;

CREATE TABLE rate_limiter.override_history (
    id bigint NOT NULL,
    kind text NOT NULL,
    tenant text NOT NULL,
    "user" text NOT NULL,
    endpoint text NOT NULL,
    credential text NOT NULL,
    ip text NOT NULL,
    policy text NOT NULL,
    "limit" bigint,
    window_size bigint,
    burst bigint,
    factor bigint,
    reason text NOT NULL,
    author text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    permanent boolean NOT NULL,
    source text NOT NULL,
    revision bigint NOT NULL,
    public_note text NOT NULL,
    tag text NOT NULL,
    starts_at timestamp with time zone,
    ended_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_by text NOT NULL,
    end_reason text NOT NULL,
    amount bigint
);

ALTER TABLE rate_limiter.override_history OWNER TO owner;

CREATE TABLE rate_limiter.overrides (
    id bigint NOT NULL,
    kind text NOT NULL,
    tenant text DEFAULT ''::text NOT NULL,
    "user" text DEFAULT ''::text NOT NULL,
    endpoint text DEFAULT ''::text NOT NULL,
    credential text DEFAULT ''::text NOT NULL,
    ip text DEFAULT ''::text NOT NULL,
    policy text DEFAULT ''::text NOT NULL,
    "limit" bigint,
    window_size bigint,
    burst bigint,
    factor bigint,
    reason text NOT NULL,
    author text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone,
    permanent boolean DEFAULT false NOT NULL,
    source text DEFAULT 'commercial'::text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    public_note text DEFAULT ''::text NOT NULL,
    tag text DEFAULT ''::text NOT NULL,
    starts_at timestamp with time zone,
    amount bigint,
    CONSTRAINT overrides_amount CHECK (((amount >= 1) AND (amount <= '1000000000000'::bigint))),
    CONSTRAINT overrides_amount_missing CHECK (((kind <> 'topup'::text) OR (amount IS NOT NULL))),
    CONSTRAINT overrides_amount_unused CHECK (((kind = 'topup'::text) OR (amount IS NULL))),
    CONSTRAINT overrides_author CHECK (((author ~ '\S'::text) AND (octet_length(author) <= 256))),
    CONSTRAINT overrides_burst CHECK (((burst >= 1) AND (burst <= '1000000000000'::bigint))),
    CONSTRAINT overrides_burst_unused CHECK (((kind = 'custom_limit'::text) OR (burst IS NULL))),
    CONSTRAINT overrides_credential CHECK ((octet_length(credential) <= 128)),
    CONSTRAINT overrides_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT overrides_expires_at CHECK (((expires_at > created_at) AND isfinite(expires_at))),
    CONSTRAINT overrides_expires_at_missing CHECK ((permanent OR (expires_at IS NOT NULL))),
    CONSTRAINT overrides_expires_at_permanent CHECK (((NOT permanent) OR (expires_at IS NULL))),
    CONSTRAINT overrides_factor CHECK (((factor >= 1) AND (factor <= 1000000))),
    CONSTRAINT overrides_factor_missing CHECK (((kind <> 'multiplier'::text) OR (factor IS NOT NULL))),
    CONSTRAINT overrides_factor_unused CHECK (((kind = 'multiplier'::text) OR (factor IS NULL))),
    CONSTRAINT overrides_ip CHECK (((ip = ''::text) OR rate_limiter.is_address(ip))),
    CONSTRAINT overrides_ip_all CHECK (((kind <> 'exempt'::text) OR (ip !~~ '%/0'::text))),
    CONSTRAINT overrides_kind CHECK ((kind = ANY (ARRAY['custom_limit'::text, 'multiplier'::text, 'ban'::text, 'exempt'::text, 'topup'::text]))),
    CONSTRAINT overrides_limit CHECK ((("limit" >= 1) AND ("limit" <= '1000000000000'::bigint))),
    CONSTRAINT overrides_limit_missing CHECK (((kind <> 'custom_limit'::text) OR ("limit" IS NOT NULL))),
    CONSTRAINT overrides_limit_unused CHECK (((kind = 'custom_limit'::text) OR ("limit" IS NULL))),
    CONSTRAINT overrides_policy CHECK ((policy ~ '^[A-Za-z0-9_.-]{0,64}$'::text)),
    CONSTRAINT overrides_policy_missing CHECK (((kind <> ALL (ARRAY['custom_limit'::text, 'topup'::text])) OR (policy <> ''::text))),
    CONSTRAINT overrides_policy_unused CHECK (((kind = ANY (ARRAY['custom_limit'::text, 'multiplier'::text, 'topup'::text])) OR (policy = ''::text))),
    CONSTRAINT overrides_public_note CHECK (((octet_length(public_note) <= 1024) AND (public_note !~ '[[:cntrl:]]'::text))),
    CONSTRAINT overrides_reason CHECK (((reason ~ '\S'::text) AND (octet_length(reason) <= 1024))),
    CONSTRAINT overrides_source CHECK ((source = ANY (ARRAY['commercial'::text, 'detector'::text, 'scheduled'::text]))),
    CONSTRAINT overrides_starts_at CHECK (isfinite(starts_at)),
    CONSTRAINT overrides_starts_at_end CHECK ((starts_at < expires_at)),
    CONSTRAINT overrides_starts_at_source CHECK (((starts_at IS NOT NULL) = (source = 'scheduled'::text))),
    CONSTRAINT overrides_subject CHECK (
CASE
    WHEN (tag <> ''::text) THEN ((tenant = ''::text) AND ("user" = ''::text) AND (credential = ''::text) AND (ip = ''::text))
    WHEN (ip <> ''::text) THEN (("user" = ''::text) AND (credential = ''::text) AND ((endpoint = ''::text) OR (kind = 'exempt'::text)))
    WHEN (credential <> ''::text) THEN (("user" = ''::text) AND (endpoint = ''::text))
    WHEN ((kind = 'exempt'::text) AND (tenant = ''::text)) THEN ((endpoint <> ''::text) AND ("user" = ''::text))
    ELSE (tenant <> ''::text)
END),
    CONSTRAINT overrides_tag CHECK (((octet_length(tag) <= 128) AND (strpos(tag, '*'::text) = 0))),
    CONSTRAINT overrides_tag_unused CHECK (((kind = 'exempt'::text) OR (tag = ''::text))),
    CONSTRAINT overrides_tenant CHECK ((octet_length(tenant) <= 128)),
    CONSTRAINT overrides_topup CHECK (((kind <> 'topup'::text) OR ((tenant <> ''::text) AND (ip = ''::text) AND (NOT permanent) AND (starts_at IS NULL) AND (source = 'commercial'::text)))),
    CONSTRAINT overrides_user CHECK ((octet_length("user") <= 128)),
    CONSTRAINT overrides_window_size CHECK (((window_size >= 1) AND (window_size <= 31622400))),
    CONSTRAINT overrides_window_size_unused CHECK (((kind = 'custom_limit'::text) OR (window_size IS NULL)))
);

ALTER TABLE rate_limiter.overrides OWNER TO owner;

ALTER TABLE rate_limiter.overrides ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.overrides_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.policies (
    id bigint NOT NULL,
    namespace text DEFAULT 'default'::text NOT NULL,
    name text NOT NULL,
    tier text DEFAULT ''::text NOT NULL,
    tenant text DEFAULT ''::text NOT NULL,
    endpoint text DEFAULT ''::text NOT NULL,
    scope text NOT NULL,
    "limit" bigint NOT NULL,
    window_size bigint,
    algorithm text DEFAULT 'token_bucket'::text NOT NULL,
    burst bigint,
    soft_threshold_pct bigint,
    hard_threshold_pct bigint,
    soft_only boolean DEFAULT false NOT NULL,
    mode text DEFAULT ''::text NOT NULL,
    cost bigint,
    fail_mode text DEFAULT ''::text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    accuracy text DEFAULT ''::text NOT NULL,
    public_note text DEFAULT ''::text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    settle jsonb,
    fair jsonb,
    "user" text DEFAULT ''::text NOT NULL,
    credential text DEFAULT ''::text NOT NULL,
    ip text DEFAULT ''::text NOT NULL,
    "for" text DEFAULT ''::text NOT NULL,
    period text DEFAULT ''::text NOT NULL,
    time_zone text DEFAULT ''::text NOT NULL,
    anchor jsonb,
    max_duration bigint,
    unit text DEFAULT ''::text NOT NULL,
    match jsonb,
    CONSTRAINT policies_accuracy CHECK ((accuracy = ANY (ARRAY[''::text, 'leased'::text, 'exact'::text]))),
    CONSTRAINT policies_accuracy_concurrency CHECK (((algorithm <> 'concurrency'::text) OR (accuracy <> 'leased'::text))),
    CONSTRAINT policies_algorithm CHECK ((algorithm = ANY (ARRAY['token_bucket'::text, 'leaky_bucket'::text, 'fixed_window'::text, 'sliding_window'::text, 'sliding_log'::text, 'concurrency'::text]))),
    CONSTRAINT policies_anchor CHECK (((anchor IS NULL) OR COALESCE(((jsonb_typeof(anchor) = 'object'::text) AND (octet_length((anchor)::text) <= 256) AND ((anchor)::text !~ '(: )-?[0-9]+[.]'::text) AND (NOT (anchor @? '$?(exists (@."month") && !((@."month".type() == "number" && @."month" >= 1) && @."month" <= 12))'::jsonpath)) AND (NOT (anchor @? '$?(exists (@."day") && !((@."day".type() == "number" && @."day" >= 1) && @."day" <= 31))'::jsonpath)) AND (NOT (anchor @? '$?(exists (@."weekday") && !(@."weekday".type() == "string" && @."weekday" like_regex "^(mon|tues|wednes|thurs|fri|satur|sun)day$"))'::jsonpath)) AND (NOT (anchor @? '$?(exists (@."hour") && !((@."hour".type() == "number" && @."hour" >= 0) && @."hour" <= 23))'::jsonpath))), false))),
    CONSTRAINT policies_anchor_period CHECK (((anchor IS NULL) OR (jsonb_typeof(anchor) <> 'object'::text) OR (((anchor -
CASE period
    WHEN 'day'::text THEN ARRAY['hour'::text]
    WHEN 'week'::text THEN ARRAY['weekday'::text, 'hour'::text]
    WHEN 'month'::text THEN ARRAY['day'::text, 'hour'::text]
    ELSE ARRAY['month'::text, 'day'::text, 'hour'::text]
END) = '{}'::jsonb) AND (period <> ''::text)))),
    CONSTRAINT policies_burst CHECK (((burst >= 1) AND (burst <= '1000000000000'::bigint))),
    CONSTRAINT policies_burst_algorithm CHECK (((burst IS NULL) OR (algorithm = ANY (ARRAY['token_bucket'::text, 'leaky_bucket'::text])))),
    CONSTRAINT policies_cost CHECK (((cost >= 0) AND (cost <= 1000000000))),
    CONSTRAINT policies_cost_capacity CHECK ((soft_only OR (cost <= ((
CASE algorithm
    WHEN 'token_bucket'::text THEN COALESCE(burst, "limit")
    WHEN 'leaky_bucket'::text THEN COALESCE(burst, (1)::bigint)
    ELSE "limit"
END *
CASE
    WHEN (soft_threshold_pct IS NULL) THEN (100)::bigint
    ELSE COALESCE(hard_threshold_pct, (100)::bigint)
END) / 100)))),
    CONSTRAINT policies_cost_concurrency CHECK (((algorithm <> 'concurrency'::text) OR (cost <= 1))),
    CONSTRAINT policies_credential CHECK ((octet_length(credential) <= 128)),
    CONSTRAINT policies_description CHECK (((octet_length(description) <= 200) AND (description !~ '[[:cntrl:]]'::text))),
    CONSTRAINT policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT policies_fail_mode CHECK ((fail_mode = ANY (ARRAY[''::text, 'open'::text, 'closed'::text, 'local'::text]))),
    CONSTRAINT policies_fair CHECK (((fair IS NULL) OR COALESCE(((jsonb_typeof(fair) = 'object'::text) AND (octet_length((fair)::text) <= 8192) AND ((fair)::text !~ '(: |, |\[)-?[0-9]+[.]'::text) AND (COALESCE(jsonb_typeof((fair -> 'weights'::text)), 'object'::text) = 'object'::text) AND (NOT (fair @? '$."weights".keyvalue()?(!((@."value".type() == "number" && @."value" >= 1) && @."value" <= 1000))'::jsonpath)) AND (NOT (fair @? '$?(exists (@."default") && !((@."default".type() == "number" && @."default" >= 1) && @."default" <= 1000))'::jsonpath))), false))),
    CONSTRAINT policies_fair_algorithm CHECK (((fair IS NULL) OR (algorithm = 'token_bucket'::text))),
    CONSTRAINT policies_fair_burst CHECK (((fair IS NULL) OR (COALESCE(burst, "limit") >= ("limit" / window_size)))),
    CONSTRAINT policies_fair_limit CHECK (((fair IS NULL) OR (("limit" / window_size) >= 10))),
    CONSTRAINT policies_fair_scope CHECK (((fair IS NULL) OR (scope = ANY (ARRAY['global'::text, 'endpoint'::text])))),
    CONSTRAINT policies_fair_soft_only CHECK (((fair IS NULL) OR (NOT soft_only))),
    CONSTRAINT policies_fair_window_size CHECK (((fair IS NULL) OR (window_size <= 3599))),
    CONSTRAINT policies_for CHECK (("for" = ANY (ARRAY[''::text, 'all'::text, 'anonymous'::text]))),
    CONSTRAINT policies_hard_soft_only CHECK (((hard_threshold_pct IS NULL) OR (NOT soft_only))),
    CONSTRAINT policies_hard_threshold_pct CHECK (((hard_threshold_pct >= 100) AND (hard_threshold_pct <= 1000))),
    CONSTRAINT policies_ip CHECK (((ip = ''::text) OR ((octet_length(ip) <= 64) AND rate_limiter.is_address(ip)))),
    CONSTRAINT policies_ip_all CHECK ((ip !~~ '%/0'::text)),
    CONSTRAINT policies_limit CHECK ((("limit" >= 1) AND ("limit" <= '1000000000000'::bigint))),
    CONSTRAINT policies_limit_concurrency CHECK (((algorithm <> 'concurrency'::text) OR ("limit" <= 10000))),
    CONSTRAINT policies_limit_sliding_log CHECK (((algorithm <> 'sliding_log'::text) OR ("limit" <= 10000))),
    CONSTRAINT policies_match CHECK (((match IS NULL) OR COALESCE(((jsonb_typeof(match) = 'object'::text) AND (octet_length((match)::text) <= 2048) AND (match ?| ARRAY['model'::text, 'provider'::text]) AND (NOT (match @? '$.*?(@.type() != "string")'::jsonpath)) AND COALESCE((((octet_length((match ->> 'model'::text)) >= 1) AND (octet_length((match ->> 'model'::text)) <= 128)) AND ((match ->> 'model'::text) ~ '^[^*]*[*]?$'::text)), true) AND COALESCE(((octet_length((match ->> 'provider'::text)) >= 1) AND (octet_length((match ->> 'provider'::text)) <= 128)), true)), false))),
    CONSTRAINT policies_match_settle CHECK (((match IS NULL) OR (settle IS NOT NULL))),
    CONSTRAINT policies_max_duration CHECK (((max_duration >= 1) AND (max_duration <= 86400))),
    CONSTRAINT policies_max_duration_algorithm CHECK (((max_duration IS NOT NULL) = (algorithm = 'concurrency'::text))),
    CONSTRAINT policies_mode CHECK ((mode = ANY (ARRAY[''::text, 'enforce'::text, 'shadow'::text, 'log'::text]))),
    CONSTRAINT policies_name CHECK ((name ~ '^[A-Za-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT policies_namespace CHECK ((namespace ~ '^[A-Za-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT policies_period CHECK ((period = ANY (ARRAY[''::text, 'day'::text, 'week'::text, 'month'::text, 'quarter'::text, 'year'::text]))),
    CONSTRAINT policies_period_algorithm CHECK (((period = ''::text) OR (algorithm = 'fixed_window'::text))),
    CONSTRAINT policies_public_note CHECK (((octet_length(public_note) <= 1024) AND (public_note !~ '[[:cntrl:]]'::text))),
    CONSTRAINT policies_scope CHECK ((scope = ANY (ARRAY['tenant'::text, 'user'::text, 'credential'::text, 'ip'::text, 'endpoint'::text, 'global'::text, 'tenant+endpoint'::text, 'user+endpoint'::text]))),
    CONSTRAINT policies_settle CHECK (((settle IS NULL) OR COALESCE(((jsonb_typeof(settle) = 'object'::text) AND (octet_length((settle)::text) <= 8192) AND ((settle)::text !~ '(: |, |\[)-?[0-9]+[.]'::text) AND (jsonb_typeof((settle -> 'sources'::text)) = 'array'::text) AND (NOT (settle @? '$?(@."sources".size() < 1 || @."sources".size() > 8)'::jsonpath)) AND (NOT (settle @? '$."sources"[*].type()?(@ != "object")'::jsonpath)) AND (NOT (settle @? '$."sources"[*]?(!(@."from".type() == "string" && @."from" like_regex "^((header|log|shared)[.][A-Za-z0-9_.*-]+|prices)$"))'::jsonpath)) AND (NOT (settle @? '$."sources"[*]?(exists (@."weight") && !((@."weight".type() == "number" && @."weight" >= 1) && @."weight" <= 1000000))'::jsonpath)) AND (NOT (settle @? '$?(exists (@."reserve") && !((@."reserve".type() == "number" && @."reserve" >= 1) && @."reserve" <= 1000000000000))'::jsonpath)) AND (NOT (settle @? '$?(exists (@."reserve_header") && !(@."reserve_header".type() == "string" && @."reserve_header" like_regex "^[A-Za-z0-9_-]{1,128}$"))'::jsonpath)) AND (NOT (settle @? '$?(exists (@."reserve_max") && !((@."reserve_max".type() == "number" && @."reserve_max" >= 1) && @."reserve_max" <= 1000000000000))'::jsonpath)) AND ((settle ? 'reserve_header'::text) = (settle ? 'reserve_max'::text)) AND (COALESCE(jsonb_typeof((settle -> 'refund_on'::text)), 'array'::text) = 'array'::text) AND (NOT (settle @? '$."refund_on"[*].type()?(@ != "number")'::jsonpath)) AND (NOT (settle @? '$."refund_on"[*]?(@ < 100 || @ > 599)'::jsonpath)) AND (NOT (settle @? '$?(exists (@."timeout") && !((@."timeout".type() == "number" && @."timeout" >= 1) && @."timeout" <= 86400))'::jsonpath))), false))),
    CONSTRAINT policies_settle_algorithm CHECK (((settle IS NULL) OR (algorithm = ANY (ARRAY['token_bucket'::text, 'fixed_window'::text])))),
    CONSTRAINT policies_settle_soft_only CHECK (((settle IS NULL) OR (NOT soft_only))),
    CONSTRAINT policies_soft_above_hard CHECK ((soft_only OR (soft_threshold_pct <= COALESCE(hard_threshold_pct, (100)::bigint)))),
    CONSTRAINT policies_soft_concurrency CHECK (((algorithm <> 'concurrency'::text) OR ((soft_threshold_pct IS NULL) AND (hard_threshold_pct IS NULL) AND (NOT soft_only)))),
    CONSTRAINT policies_soft_threshold_pct CHECK (((soft_threshold_pct >= 1) AND (soft_threshold_pct <= 1000))),
    CONSTRAINT policies_target CHECK (((("user" = ''::text) OR (tenant <> ''::text)) AND (((((((tier <> ''::text))::integer + ((tenant <> ''::text))::integer) + ((credential <> ''::text))::integer) + ((ip <> ''::text))::integer) + (("for" <> ''::text))::integer) = 1))),
    CONSTRAINT policies_target_scope CHECK (
CASE
    WHEN ("user" <> ''::text) THEN (scope = ANY (ARRAY['user'::text, 'user+endpoint'::text]))
    WHEN (credential <> ''::text) THEN (scope = 'credential'::text)
    WHEN (ip <> ''::text) THEN (scope = ANY (ARRAY['ip'::text, 'global'::text]))
    WHEN ("for" <> ''::text) THEN (scope = ANY (ARRAY['global'::text, 'endpoint'::text, 'ip'::text]))
    ELSE true
END),
    CONSTRAINT policies_tenant CHECK ((octet_length(tenant) <= 128)),
    CONSTRAINT policies_tier CHECK ((octet_length(tier) <= 64)),
    CONSTRAINT policies_time_zone CHECK (((time_zone = ''::text) OR ((octet_length(time_zone) <= 64) AND (time_zone ~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$'::text)))),
    CONSTRAINT policies_time_zone_period CHECK (((time_zone = ''::text) OR (period <> ''::text))),
    CONSTRAINT policies_unit CHECK ((unit = ANY (ARRAY[''::text, 'usd'::text]))),
    CONSTRAINT policies_unit_prices CHECK (((unit = 'usd'::text) OR (settle IS NULL) OR (NOT (settle @? '$."sources"[*]?(@."from" == "prices")'::jsonpath)))),
    CONSTRAINT policies_user CHECK ((octet_length("user") <= 128)),
    CONSTRAINT policies_window_size CHECK (((window_size >= 1) AND (window_size <= 31622400))),
    CONSTRAINT policies_window_size_given CHECK ((num_nonnulls(window_size, NULLIF(period, ''::text), max_duration) = 1))
);

ALTER TABLE rate_limiter.policies OWNER TO owner;

ALTER TABLE rate_limiter.policies ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.policies_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.prices (
    id bigint NOT NULL,
    namespace text DEFAULT 'default'::text NOT NULL,
    model text NOT NULL,
    prompt bigint NOT NULL,
    completion bigint NOT NULL,
    starts_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT prices_completion CHECK (((completion >= 0) AND (completion <= '1000000000000'::bigint))),
    CONSTRAINT prices_model CHECK (((model <> ''::text) AND (octet_length(model) <= 128) AND (model ~ '^[^*]*[*]?$'::text))),
    CONSTRAINT prices_namespace CHECK ((namespace ~ '^[A-Za-z0-9_.-]{1,64}$'::text)),
    CONSTRAINT prices_prompt CHECK (((prompt >= 0) AND (prompt <= '1000000000000'::bigint))),
    CONSTRAINT prices_starts_at CHECK (isfinite(starts_at))
);

ALTER TABLE rate_limiter.prices OWNER TO owner;

ALTER TABLE rate_limiter.prices ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.prices_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.quota_notices (
    tenant text NOT NULL,
    policy text NOT NULL,
    endpoint text NOT NULL,
    window_start timestamp with time zone NOT NULL,
    threshold smallint NOT NULL,
    window_end timestamp with time zone NOT NULL,
    "limit" bigint NOT NULL,
    used bigint NOT NULL,
    exhausted_at timestamp with time zone,
    late boolean NOT NULL,
    noticed_at timestamp with time zone NOT NULL,
    unit text DEFAULT ''::text NOT NULL,
    CONSTRAINT quota_notices_threshold CHECK ((threshold = ANY (ARRAY[50, 80, 100])))
);

ALTER TABLE rate_limiter.quota_notices OWNER TO owner;

CREATE TABLE rate_limiter.recent_denial_counts (
    tenant text NOT NULL,
    rows bigint NOT NULL
);

ALTER TABLE rate_limiter.recent_denial_counts OWNER TO owner;

CREATE TABLE rate_limiter.recent_denials (
    id bigint NOT NULL,
    login text NOT NULL,
    node text NOT NULL,
    event text NOT NULL,
    at timestamp with time zone NOT NULL,
    tenant text NOT NULL,
    endpoint text NOT NULL,
    policy text NOT NULL,
    scope text NOT NULL,
    "limit" bigint,
    window_size bigint,
    reason text NOT NULL,
    shadow boolean NOT NULL,
    count bigint NOT NULL,
    tenant_count bigint NOT NULL,
    "user" text NOT NULL,
    ip text NOT NULL,
    retry_after bigint,
    tier text,
    policy_for text,
    policy_id bigint,
    policy_version bigint,
    capacity bigint,
    cost bigint,
    remaining bigint,
    override bigint,
    penalty bigint,
    request_ids text[],
    hidden_ids text[],
    unit text
);

ALTER TABLE rate_limiter.recent_denials OWNER TO owner;

ALTER TABLE rate_limiter.recent_denials ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.recent_denials_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.tenant_tiers (
    since timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    stored_at timestamp with time zone NOT NULL,
    tenant integer NOT NULL,
    namespace text NOT NULL,
    tier text NOT NULL,
    source text NOT NULL
);

ALTER TABLE rate_limiter.tenant_tiers OWNER TO owner;

CREATE TABLE rate_limiter.tenants (
    id text NOT NULL,
    tier text DEFAULT ''::text NOT NULL,
    time_zone text DEFAULT ''::text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    CONSTRAINT tenants_id CHECK (((octet_length(id) >= 1) AND (octet_length(id) <= 128))),
    CONSTRAINT tenants_tier CHECK ((octet_length(tier) <= 64)),
    CONSTRAINT tenants_time_zone CHECK (((time_zone = ''::text) OR ((octet_length(time_zone) <= 64) AND (time_zone ~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$'::text))))
);

ALTER TABLE rate_limiter.tenants OWNER TO owner;

CREATE TABLE rate_limiter.tiers (
    name text NOT NULL,
    description text DEFAULT ''::text NOT NULL,
    revision bigint DEFAULT 1 NOT NULL,
    title text DEFAULT ''::text NOT NULL,
    price_text text DEFAULT ''::text NOT NULL,
    CONSTRAINT tiers_description CHECK ((octet_length(description) <= 1024)),
    CONSTRAINT tiers_name CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 64))),
    CONSTRAINT tiers_price_text CHECK ((octet_length(price_text) <= 256)),
    CONSTRAINT tiers_title CHECK ((octet_length(title) <= 64))
);

ALTER TABLE rate_limiter.tiers OWNER TO owner;

CREATE TABLE rate_limiter.tokens (
    id bigint NOT NULL,
    name text NOT NULL,
    hash bytea NOT NULL,
    role text NOT NULL,
    org text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text DEFAULT rate_limiter.actor() NOT NULL,
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    revoked_by text DEFAULT ''::text NOT NULL,
    CONSTRAINT tokens_created_by CHECK (((created_by ~ '\S'::text) AND (octet_length(created_by) <= 256))),
    CONSTRAINT tokens_expires_at CHECK (((expires_at > created_at) AND isfinite(expires_at))),
    CONSTRAINT tokens_hash CHECK ((octet_length(hash) = 32)),
    CONSTRAINT tokens_name CHECK ((name ~ '^([A-Za-z0-9_.@%~-]{1,128}/)?[A-Za-z0-9_.@-]{1,64}$'::text)),
    CONSTRAINT tokens_name_org CHECK (((POSITION(('/'::text) IN (name)) = 0) OR (role = 'tenant'::text))),
    CONSTRAINT tokens_org CHECK ((octet_length(org) <= 128)),
    CONSTRAINT tokens_org_missing CHECK (((role <> 'tenant'::text) OR (org <> ''::text))),
    CONSTRAINT tokens_org_unused CHECK (((role = 'tenant'::text) OR (org = ''::text))),
    CONSTRAINT tokens_revoked_by CHECK ((((revoked_at IS NULL) = (revoked_by = ''::text)) AND (octet_length(revoked_by) <= 256))),
    CONSTRAINT tokens_role CHECK ((role = ANY (ARRAY['admin'::text, 'viewer'::text, 'tenant'::text])))
);

ALTER TABLE rate_limiter.tokens OWNER TO owner;

ALTER TABLE rate_limiter.tokens ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.tokens_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.usage_batches (
    node text NOT NULL,
    epoch text NOT NULL,
    seq bigint NOT NULL,
    login text NOT NULL,
    began timestamp with time zone NOT NULL,
    received_at timestamp with time zone NOT NULL,
    payload bytea NOT NULL,
    fault text DEFAULT ''::text NOT NULL
);

ALTER TABLE rate_limiter.usage_batches OWNER TO owner;

CREATE TABLE rate_limiter.usage_days (
    at timestamp with time zone NOT NULL,
    admitted bigint NOT NULL,
    soft bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    cost bigint NOT NULL,
    remaining_min bigint,
    tenant integer NOT NULL,
    endpoint integer NOT NULL,
    policy integer NOT NULL,
    late boolean NOT NULL
)
PARTITION BY RANGE (at);

ALTER TABLE rate_limiter.usage_days OWNER TO owner;

CREATE TABLE rate_limiter.usage_hours (
    at timestamp with time zone NOT NULL,
    admitted bigint NOT NULL,
    soft bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    cost bigint NOT NULL,
    remaining_min bigint,
    tenant integer NOT NULL,
    endpoint integer NOT NULL,
    policy integer NOT NULL
)
PARTITION BY RANGE (at);

ALTER TABLE rate_limiter.usage_hours OWNER TO owner;

CREATE TABLE rate_limiter.usage_minutes (
    at timestamp with time zone NOT NULL,
    admitted bigint NOT NULL,
    soft bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    cost bigint NOT NULL,
    remaining_min bigint,
    tenant integer NOT NULL,
    endpoint integer NOT NULL,
    policy integer NOT NULL
)
PARTITION BY RANGE (at);

ALTER TABLE rate_limiter.usage_minutes OWNER TO owner;

CREATE TABLE rate_limiter.usage_models (
    calls bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    micro_usd bigint NOT NULL,
    day date NOT NULL,
    tenant integer NOT NULL,
    model text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT usage_models_model CHECK ((octet_length(model) <= 1024))
);

ALTER TABLE rate_limiter.usage_models OWNER TO owner;

CREATE TABLE rate_limiter.usage_names (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    unit text DEFAULT ''::text NOT NULL,
    CONSTRAINT usage_names_name CHECK ((octet_length(name) <= 1024)),
    CONSTRAINT usage_names_unit CHECK ((unit = ANY (ARRAY[''::text, 'usd'::text])))
);

ALTER TABLE rate_limiter.usage_names OWNER TO owner;

ALTER TABLE rate_limiter.usage_names ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.usage_names_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.usage_nodes (
    login text NOT NULL,
    node text NOT NULL,
    batches bigint NOT NULL,
    bytes bigint NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

ALTER TABLE rate_limiter.usage_nodes OWNER TO owner;

CREATE TABLE rate_limiter.usage_sources (
    node text NOT NULL,
    epoch text NOT NULL,
    login text NOT NULL,
    last_seq bigint NOT NULL,
    gaps bigint NOT NULL,
    too_late bigint NOT NULL,
    faulty bigint NOT NULL,
    watermark timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL
);

ALTER TABLE rate_limiter.usage_sources OWNER TO owner;

CREATE TABLE rate_limiter.usage_state (
    one boolean DEFAULT true NOT NULL,
    hours_until timestamp with time zone NOT NULL,
    days_until timestamp with time zone NOT NULL,
    changed_since timestamp with time zone,
    checked_at timestamp with time zone,
    CONSTRAINT usage_state_one_row CHECK (one),
    CONSTRAINT usage_state_order CHECK ((days_until <= hours_until))
);

ALTER TABLE rate_limiter.usage_state OWNER TO owner;

CREATE TABLE rate_limiter.version (
    one boolean DEFAULT true NOT NULL,
    version bigint DEFAULT 0 NOT NULL,
    transaction xid8,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    pruned bigint DEFAULT 0 NOT NULL,
    CONSTRAINT version_one_row CHECK (one),
    CONSTRAINT version_pruned CHECK (((pruned >= 0) AND (pruned <= version)))
);

ALTER TABLE rate_limiter.version OWNER TO owner;

CREATE TABLE rate_limiter.webhook_deliveries (
    id text NOT NULL,
    webhook bigint NOT NULL,
    events integer NOT NULL,
    body text NOT NULL,
    state text DEFAULT 'waiting'::text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    status integer DEFAULT 0 NOT NULL,
    error text DEFAULT ''::text NOT NULL,
    tried_at timestamp with time zone,
    CONSTRAINT webhook_deliveries_body CHECK ((octet_length(body) <= 1048576)),
    CONSTRAINT webhook_deliveries_error CHECK ((octet_length(error) <= 1024)),
    CONSTRAINT webhook_deliveries_id CHECK (((octet_length(id) >= 1) AND (octet_length(id) <= 64))),
    CONSTRAINT webhook_deliveries_state CHECK ((state = ANY (ARRAY['waiting'::text, 'delivered'::text, 'failed'::text])))
);

ALTER TABLE rate_limiter.webhook_deliveries OWNER TO owner;

CREATE TABLE rate_limiter.webhook_denials (
    id bigint NOT NULL,
    login text NOT NULL,
    node text NOT NULL,
    event text NOT NULL,
    at timestamp with time zone NOT NULL,
    received_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tenant text NOT NULL,
    data json NOT NULL
);

ALTER TABLE rate_limiter.webhook_denials OWNER TO owner;

ALTER TABLE rate_limiter.webhook_denials ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.webhook_denials_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.webhook_secrets (
    id bigint NOT NULL,
    webhook bigint NOT NULL,
    secret bytea NOT NULL,
    signs_until timestamp with time zone,
    CONSTRAINT webhook_secrets_secret CHECK (((octet_length(secret) >= 24) AND (octet_length(secret) <= 64)))
);

ALTER TABLE rate_limiter.webhook_secrets OWNER TO owner;

ALTER TABLE rate_limiter.webhook_secrets ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.webhook_secrets_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE rate_limiter.webhooks (
    id bigint NOT NULL,
    org text DEFAULT ''::text NOT NULL,
    url text NOT NULL,
    types text[] DEFAULT '{}'::text[] NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_by text NOT NULL,
    disabled_for text DEFAULT ''::text NOT NULL,
    failing_since timestamp with time zone,
    failures bigint DEFAULT 0 NOT NULL,
    last_error text DEFAULT ''::text NOT NULL,
    delivered_at timestamp with time zone,
    hold_until timestamp with time zone,
    dropped bigint DEFAULT 0 NOT NULL,
    CONSTRAINT webhooks_created_by CHECK (((created_by ~ '\S'::text) AND (octet_length(created_by) <= 256))),
    CONSTRAINT webhooks_disabled_for CHECK (((octet_length(disabled_for) <= 1024) AND ((NOT enabled) OR (disabled_for = ''::text)))),
    CONSTRAINT webhooks_last_error CHECK ((octet_length(last_error) <= 1024)),
    CONSTRAINT webhooks_org CHECK ((octet_length(org) <= 128)),
    CONSTRAINT webhooks_types CHECK ((cardinality(types) <= 16)),
    CONSTRAINT webhooks_url CHECK (((octet_length(url) <= 2048) AND (url ~ '^https?://[^[:space:][:cntrl:]]+$'::text)))
);

ALTER TABLE rate_limiter.webhooks OWNER TO owner;

ALTER TABLE rate_limiter.webhooks ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME rate_limiter.webhooks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE ONLY rate_limiter.abuse_denials
    ADD CONSTRAINT abuse_denials_pkey PRIMARY KEY (at, tenant);

ALTER TABLE ONLY rate_limiter.abuse_state
    ADD CONSTRAINT abuse_state_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rate_limiter.abuse_steps
    ADD CONSTRAINT abuse_steps_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.abuse_tenants
    ADD CONSTRAINT abuse_tenants_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY rate_limiter.answers
    ADD CONSTRAINT answers_pkey PRIMARY KEY (token, key);

ALTER TABLE ONLY rate_limiter.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.candidate_counts
    ADD CONSTRAINT candidate_counts_pkey PRIMARY KEY (candidate, tenant, endpoint, policy);

ALTER TABLE ONLY rate_limiter.candidate_policies
    ADD CONSTRAINT candidate_policies_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.candidate_reports
    ADD CONSTRAINT candidate_reports_pkey PRIMARY KEY (candidate);

ALTER TABLE ONLY rate_limiter.candidate_sources
    ADD CONSTRAINT candidate_sources_pkey PRIMARY KEY (candidate, source);

ALTER TABLE ONLY rate_limiter.candidate_tenants
    ADD CONSTRAINT candidate_tenants_pkey PRIMARY KEY (candidate, tenant);

ALTER TABLE ONLY rate_limiter.candidates
    ADD CONSTRAINT candidates_pkey PRIMARY KEY (name);

ALTER TABLE ONLY rate_limiter.changes
    ADD CONSTRAINT changes_pkey PRIMARY KEY (version, number);

ALTER TABLE ONLY rate_limiter.costs
    ADD CONSTRAINT costs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (node);

ALTER TABLE ONLY rate_limiter.outbox_cursors
    ADD CONSTRAINT outbox_cursors_pkey PRIMARY KEY (consumer);

ALTER TABLE ONLY rate_limiter.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.outbox_state
    ADD CONSTRAINT outbox_state_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rate_limiter.override_history
    ADD CONSTRAINT override_history_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.overrides
    ADD CONSTRAINT overrides_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.policies
    ADD CONSTRAINT policies_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.prices
    ADD CONSTRAINT prices_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.quota_notices
    ADD CONSTRAINT quota_notices_pkey PRIMARY KEY (tenant, policy, endpoint, window_start, threshold);

ALTER TABLE ONLY rate_limiter.recent_denial_counts
    ADD CONSTRAINT recent_denial_counts_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY rate_limiter.recent_denials
    ADD CONSTRAINT recent_denials_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.tenant_tiers
    ADD CONSTRAINT tenant_tiers_pkey PRIMARY KEY (tenant, namespace, tier, source);

ALTER TABLE ONLY rate_limiter.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.tiers
    ADD CONSTRAINT tiers_pkey PRIMARY KEY (name);

ALTER TABLE ONLY rate_limiter.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.usage_batches
    ADD CONSTRAINT usage_batches_pkey PRIMARY KEY (node, epoch, seq);

ALTER TABLE ONLY rate_limiter.usage_days
    ADD CONSTRAINT usage_days_pkey PRIMARY KEY (tenant, at, endpoint, policy, late);

ALTER TABLE ONLY rate_limiter.usage_hours
    ADD CONSTRAINT usage_hours_pkey PRIMARY KEY (tenant, at, endpoint, policy);

ALTER TABLE ONLY rate_limiter.usage_minutes
    ADD CONSTRAINT usage_minutes_pkey PRIMARY KEY (tenant, at, endpoint, policy);

ALTER TABLE ONLY rate_limiter.usage_models
    ADD CONSTRAINT usage_models_pkey PRIMARY KEY (tenant, day, model);

ALTER TABLE ONLY rate_limiter.usage_names
    ADD CONSTRAINT usage_names_name_key UNIQUE (name);

ALTER TABLE ONLY rate_limiter.usage_names
    ADD CONSTRAINT usage_names_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.usage_nodes
    ADD CONSTRAINT usage_nodes_pkey PRIMARY KEY (login, node);

ALTER TABLE ONLY rate_limiter.usage_sources
    ADD CONSTRAINT usage_sources_pkey PRIMARY KEY (node, epoch);

ALTER TABLE ONLY rate_limiter.usage_state
    ADD CONSTRAINT usage_state_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rate_limiter.version
    ADD CONSTRAINT version_pkey PRIMARY KEY (one);

ALTER TABLE ONLY rate_limiter.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.webhook_denials
    ADD CONSTRAINT webhook_denials_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.webhook_secrets
    ADD CONSTRAINT webhook_secrets_pkey PRIMARY KEY (id);

ALTER TABLE ONLY rate_limiter.webhooks
    ADD CONSTRAINT webhooks_pkey PRIMARY KEY (id);

CREATE INDEX abuse_steps_at ON rate_limiter.abuse_steps USING btree (at);

CREATE INDEX abuse_steps_tenant ON rate_limiter.abuse_steps USING btree (tenant, id);

CREATE INDEX abuse_tenants_on_ladder ON rate_limiter.abuse_tenants USING btree (tenant) WHERE ((step <> 'none'::text) OR (override IS NOT NULL));

CREATE INDEX abuse_tenants_scored ON rate_limiter.abuse_tenants USING btree (scored_at);

CREATE INDEX answers_at ON rate_limiter.answers USING btree (at);

CREATE INDEX audit_actor ON rate_limiter.audit USING btree (actor, id);

CREATE INDEX audit_at ON rate_limiter.audit USING btree (at);

CREATE INDEX audit_candidate ON rate_limiter.audit USING btree (((COALESCE(after, before) ->> 'candidate'::text)), version) WHERE (kind = 'candidate_policy'::text);

CREATE INDEX audit_row ON rate_limiter.audit USING btree (kind, key, id);

CREATE INDEX audit_tenant ON rate_limiter.audit USING btree (tenant, id);

CREATE UNIQUE INDEX candidate_policies_one_per_match ON rate_limiter.candidate_policies USING btree (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential, ip, "for");

CREATE UNIQUE INDEX candidates_one_open ON rate_limiter.candidates USING btree (state) WHERE (state = 'open'::text);

CREATE INDEX changes_at ON rate_limiter.changes USING btree (at);

CREATE UNIQUE INDEX costs_one_per_endpoint ON rate_limiter.costs USING btree (namespace, rate_limiter.canonical_endpoint(endpoint));

CREATE INDEX nodes_reported ON rate_limiter.nodes USING btree (reported_at);

CREATE INDEX outbox_added ON rate_limiter.outbox USING btree (added_at);

CREATE INDEX outbox_new ON rate_limiter.outbox USING btree (id) WHERE ("position" IS NULL);

CREATE UNIQUE INDEX outbox_one_per_event ON rate_limiter.outbox USING btree (source, event);

CREATE UNIQUE INDEX outbox_position ON rate_limiter.outbox USING btree ("position");

CREATE INDEX override_history_tenant ON rate_limiter.override_history USING btree (tenant, id);

CREATE INDEX overrides_expiry ON rate_limiter.overrides USING btree (expires_at) WHERE (expires_at IS NOT NULL);

CREATE UNIQUE INDEX overrides_one_per_subject ON rate_limiter.overrides USING btree (tenant, "user", rate_limiter.canonical_endpoint(endpoint), credential, ip, tag, kind, policy, source, COALESCE(starts_at, '-infinity'::timestamp with time zone)) WHERE (kind <> 'topup'::text);

CREATE INDEX overrides_tenant ON rate_limiter.overrides USING btree (tenant, id);

CREATE UNIQUE INDEX policies_one_per_match ON rate_limiter.policies USING btree (tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential, ip, "for");

CREATE INDEX policies_tier_index ON rate_limiter.policies USING btree (tier) WHERE (tier <> ''::text);

CREATE UNIQUE INDEX prices_one_per_start ON rate_limiter.prices USING btree (namespace, model, starts_at);

CREATE INDEX quota_notices_noticed_at ON rate_limiter.quota_notices USING btree (noticed_at);

CREATE INDEX quota_notices_window_end ON rate_limiter.quota_notices USING btree (window_end);

CREATE INDEX recent_denial_counts_rows ON rate_limiter.recent_denial_counts USING btree (rows);

CREATE INDEX recent_denials_at ON rate_limiter.recent_denials USING btree (at, id);

CREATE INDEX recent_denials_endpoint ON rate_limiter.recent_denials USING btree (endpoint, at, id);

CREATE UNIQUE INDEX recent_denials_one_per_event ON rate_limiter.recent_denials USING btree (node, event);

CREATE INDEX recent_denials_policy ON rate_limiter.recent_denials USING btree (policy, at, id);

CREATE INDEX recent_denials_requests ON rate_limiter.recent_denials USING gin (request_ids);

CREATE INDEX recent_denials_tenant ON rate_limiter.recent_denials USING btree (tenant, at, id);

CREATE INDEX tenant_tiers_stored ON rate_limiter.tenant_tiers USING btree (stored_at);

CREATE INDEX tenants_order ON rate_limiter.tenants USING btree (id COLLATE "C");

CREATE UNIQUE INDEX tokens_one_per_hash ON rate_limiter.tokens USING btree (hash);

CREATE UNIQUE INDEX tokens_one_per_name ON rate_limiter.tokens USING btree (name) WHERE (revoked_at IS NULL);

CREATE INDEX tokens_org ON rate_limiter.tokens USING btree (org, id) WHERE (org <> ''::text);

CREATE INDEX tokens_spelling ON rate_limiter.tokens USING btree (lower((name COLLATE "C")));

CREATE INDEX usage_batches_began ON rate_limiter.usage_batches USING btree (began);

CREATE INDEX usage_days_at ON ONLY rate_limiter.usage_days USING brin (at) WITH (pages_per_range='32');

CREATE INDEX usage_hours_at ON ONLY rate_limiter.usage_hours USING brin (at) WITH (pages_per_range='32');

CREATE INDEX usage_minutes_at ON ONLY rate_limiter.usage_minutes USING brin (at) WITH (pages_per_range='32');

CREATE INDEX usage_models_day ON rate_limiter.usage_models USING btree (day);

CREATE INDEX usage_sources_seen ON rate_limiter.usage_sources USING btree (seen_at);

CREATE INDEX webhook_deliveries_created ON rate_limiter.webhook_deliveries USING btree (created_at);

CREATE INDEX webhook_deliveries_due ON rate_limiter.webhook_deliveries USING btree (webhook, due_at) WHERE (state = 'waiting'::text);

CREATE INDEX webhook_deliveries_webhook ON rate_limiter.webhook_deliveries USING btree (webhook, created_at);

CREATE UNIQUE INDEX webhook_denials_one_per_event ON rate_limiter.webhook_denials USING btree (node, event);

CREATE INDEX webhook_denials_tenant ON rate_limiter.webhook_denials USING btree (tenant);

CREATE INDEX webhook_secrets_webhook ON rate_limiter.webhook_secrets USING btree (webhook);

CREATE INDEX webhooks_org_id ON rate_limiter.webhooks USING btree (org, id);

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.candidate_policies FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.candidate_tenants FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.candidates FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.costs FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.overrides FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.policies FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.prices FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.tenants FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER a_queue BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.tiers FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER audit_published AFTER INSERT ON rate_limiter.audit REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.publish_changes();

CREATE TRIGGER audit_stays BEFORE DELETE OR UPDATE OR TRUNCATE ON rate_limiter.audit FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('audit rows stay as they are');

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.candidate_policies FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.candidate_tenants FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.candidates FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.costs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.overrides FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.policies FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.prices FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.tenants FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER b_unchanged BEFORE UPDATE ON rate_limiter.tiers FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.candidate_policies FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.candidate_tenants FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.candidates FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.costs FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.overrides FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.policies FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.prices FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.tenants FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER c_revision BEFORE UPDATE ON rate_limiter.tiers FOR EACH ROW EXECUTE FUNCTION rate_limiter.count_revision();

CREATE TRIGGER candidate_policies_open BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.candidate_policies FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();

CREATE TRIGGER candidate_tenants_open BEFORE INSERT OR DELETE OR UPDATE ON rate_limiter.candidate_tenants FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();

CREATE TRIGGER candidates_kept BEFORE INSERT OR UPDATE ON rate_limiter.candidates FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate();

CREATE TRIGGER candidates_stay BEFORE DELETE ON rate_limiter.candidates FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('drop the candidate: its row stays, so that no other one takes its name');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.candidate_policies REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_policy', 'id', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.candidate_tenants REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_tenant', 'tenant', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.candidates REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate', 'name', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.costs REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('cost', 'id', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.overrides REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('override', 'id', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.policies REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('policy', 'id', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.prices REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('price', 'id', 'tenant');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.tenants REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tenant', 'id', 'id');

CREATE TRIGGER d_deleted AFTER DELETE ON rate_limiter.tiers REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tier', 'name', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.candidate_policies REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_policy', 'id', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.candidate_tenants REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_tenant', 'tenant', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.candidates REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate', 'name', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.costs REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('cost', 'id', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.overrides REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('override', 'id', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.policies REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('policy', 'id', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.prices REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('price', 'id', 'tenant');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.tenants REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tenant', 'id', 'id');

CREATE TRIGGER d_inserted AFTER INSERT ON rate_limiter.tiers REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tier', 'name', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.candidate_policies REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_policy', 'id', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.candidate_tenants REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate_tenant', 'tenant', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.candidates REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('candidate', 'name', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.costs REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('cost', 'id', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.overrides REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('override', 'id', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.policies REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('policy', 'id', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.prices REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('price', 'id', 'tenant');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.tenants REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tenant', 'id', 'id');

CREATE TRIGGER d_updated AFTER UPDATE ON rate_limiter.tiers REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.record('tier', 'name', 'tenant');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.candidate_policies FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.candidate_tenants FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.candidates FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.costs FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.overrides FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.policies FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.prices FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.tenants FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER e_truncated BEFORE TRUNCATE ON rate_limiter.tiers FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('delete the rows: that is recorded');

CREATE TRIGGER nodes_bound AFTER INSERT ON rate_limiter.nodes FOR EACH ROW EXECUTE FUNCTION rate_limiter.drop_old_reports();

CREATE TRIGGER overrides_change_reason BEFORE DELETE OR UPDATE ON rate_limiter.overrides FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.want_reason();

CREATE TRIGGER overrides_history AFTER DELETE ON rate_limiter.overrides REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.remember_override();

CREATE TRIGGER overrides_names BEFORE INSERT OR UPDATE OF author ON rate_limiter.overrides FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('author');

CREATE TRIGGER prices_models_inserted AFTER INSERT ON rate_limiter.prices REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.bound_prices();

CREATE TRIGGER prices_models_updated AFTER UPDATE ON rate_limiter.prices REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.bound_prices();

CREATE TRIGGER tokens_fixed BEFORE UPDATE ON rate_limiter.tokens FOR EACH ROW WHEN ((((((((((old.id IS DISTINCT FROM new.id) OR (old.name IS DISTINCT FROM new.name)) OR (old.hash IS DISTINCT FROM new.hash)) OR (old.role IS DISTINCT FROM new.role)) OR (old.org IS DISTINCT FROM new.org)) OR (old.created_at IS DISTINCT FROM new.created_at)) OR (old.created_by IS DISTINCT FROM new.created_by)) OR (old.expires_at IS DISTINCT FROM new.expires_at)) OR (((old.revoked_at IS DISTINCT FROM new.revoked_at) OR (old.revoked_by IS DISTINCT FROM new.revoked_by)) AND ((old.revoked_at <= clock_timestamp()) OR ((new.revoked_at < old.revoked_at) IS FALSE) OR ((old.revoked_at IS NOT NULL) AND (new.revoked_at IS NULL)))))) EXECUTE FUNCTION rate_limiter.refuse('revoke the token and make another');

CREATE TRIGGER tokens_inserted AFTER INSERT ON rate_limiter.tokens FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_token();

CREATE TRIGGER tokens_names BEFORE INSERT OR UPDATE OF created_by, revoked_by ON rate_limiter.tokens FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('created_by', 'revoked_by');

CREATE TRIGGER tokens_one_role_per_name BEFORE INSERT ON rate_limiter.tokens FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_token_name();

CREATE TRIGGER tokens_queue BEFORE INSERT ON rate_limiter.tokens FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.queue();

CREATE TRIGGER tokens_stay BEFORE DELETE OR TRUNCATE ON rate_limiter.tokens FOR EACH STATEMENT EXECUTE FUNCTION rate_limiter.refuse('revoke the token: its row stays, for the audit');

CREATE TRIGGER tokens_updated AFTER UPDATE ON rate_limiter.tokens FOR EACH ROW WHEN ((old.revoked_at IS DISTINCT FROM new.revoked_at)) EXECUTE FUNCTION rate_limiter.record_token();

CREATE TRIGGER webhook_secrets_recorded AFTER INSERT ON rate_limiter.webhook_secrets FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook_secret();

CREATE TRIGGER webhooks_names BEFORE INSERT OR UPDATE OF created_by ON rate_limiter.webhooks FOR EACH ROW EXECUTE FUNCTION rate_limiter.check_names('created_by');

CREATE TRIGGER webhooks_recorded AFTER INSERT OR DELETE ON rate_limiter.webhooks FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook();

CREATE TRIGGER webhooks_updated AFTER UPDATE ON rate_limiter.webhooks FOR EACH ROW WHEN ((((old.url IS DISTINCT FROM new.url) OR (old.types IS DISTINCT FROM new.types)) OR (old.enabled IS DISTINCT FROM new.enabled))) EXECUTE FUNCTION rate_limiter.record_webhook();

ALTER TABLE ONLY rate_limiter.candidate_counts
    ADD CONSTRAINT candidate_counts_candidate_fkey FOREIGN KEY (candidate) REFERENCES rate_limiter.candidates(name);

ALTER TABLE ONLY rate_limiter.candidate_policies
    ADD CONSTRAINT candidate_policies_candidate_fkey FOREIGN KEY (candidate) REFERENCES rate_limiter.candidates(name);

ALTER TABLE ONLY rate_limiter.candidate_reports
    ADD CONSTRAINT candidate_reports_candidate_fkey FOREIGN KEY (candidate) REFERENCES rate_limiter.candidates(name);

ALTER TABLE ONLY rate_limiter.candidate_sources
    ADD CONSTRAINT candidate_sources_candidate_fkey FOREIGN KEY (candidate) REFERENCES rate_limiter.candidates(name);

ALTER TABLE ONLY rate_limiter.candidate_tenants
    ADD CONSTRAINT candidate_tenants_candidate_fkey FOREIGN KEY (candidate) REFERENCES rate_limiter.candidates(name);

ALTER TABLE ONLY rate_limiter.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_webhook_fkey FOREIGN KEY (webhook) REFERENCES rate_limiter.webhooks(id) ON DELETE CASCADE;

ALTER TABLE ONLY rate_limiter.webhook_secrets
    ADD CONSTRAINT webhook_secrets_webhook_fkey FOREIGN KEY (webhook) REFERENCES rate_limiter.webhooks(id) ON DELETE CASCADE;

REVOKE USAGE ON SCHEMA public FROM PUBLIC;

GRANT USAGE ON SCHEMA rate_limiter TO node;
GRANT USAGE ON SCHEMA rate_limiter TO operator;
GRANT USAGE ON SCHEMA rate_limiter TO server;
GRANT USAGE ON SCHEMA rate_limiter TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.actor() FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.actor() TO operator;

REVOKE ALL ON FUNCTION rate_limiter.await_turn() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.bound_prices() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.canonical_endpoint(endpoint text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.canonical_endpoint(endpoint text) TO operator;
GRANT ALL ON FUNCTION rate_limiter.canonical_endpoint(endpoint text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.check_actor(said text, named_table text, named_constraint text) FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.check_names() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.check_table(called text, schema name, "table" name) FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.check_value(valid boolean, problem text) FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.count_revision() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.create_org_token(org text, name text, hash bytea, lifetime interval, OUT id bigint, OUT problem text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.create_org_token(org text, name text, hash bytea, lifetime interval, OUT id bigint, OUT problem text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.drop_old_reports() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.drop_recent_denials(most integer) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.drop_recent_denials(most integer) TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) TO operator;
GRANT ALL ON FUNCTION rate_limiter.forgive_abuse(tenant text, length interval) TO server;

REVOKE ALL ON FUNCTION rate_limiter.is_address(ip text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.is_address(ip text) TO operator;
GRANT ALL ON FUNCTION rate_limiter.is_address(ip text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.is_endpoint(endpoint text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.is_endpoint(endpoint text) TO operator;
GRANT ALL ON FUNCTION rate_limiter.is_endpoint(endpoint text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.keep_candidate() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.keep_candidate_open() FROM PUBLIC;

REVOKE ALL ON PROCEDURE rate_limiter.keep_record(IN target regclass, IN kind text, IN key text, IN tenant text) FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.keep_token_name() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.keep_usage_partitions() FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.keep_usage_partitions() TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.lift_penalty(tenant text, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.lift_penalty(tenant text, reason text) TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.order_usage_minutes(first timestamp with time zone, until timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.order_usage_minutes(first timestamp with time zone, until timestamp with time zone) TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamp with time zone, reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.penalize(tenant text, factor bigint, until timestamp with time zone, reason text) TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.publish_changes() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.queue() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.reason() FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.reason() TO operator;
GRANT ALL ON FUNCTION rate_limiter.reason() TO server;
GRANT ALL ON FUNCTION rate_limiter.reason() TO keeper;

REVOKE ALL ON FUNCTION rate_limiter.record() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) TO operator;
GRANT ALL ON FUNCTION rate_limiter.record_action(operation text, key text, tenant text, details jsonb) TO server;

REVOKE ALL ON FUNCTION rate_limiter.record_token() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.record_webhook() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.record_webhook_secret() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.refuse() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.remember_override() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json) TO node;
GRANT ALL ON FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json) TO server;

REVOKE ALL ON FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.report_denials(node text, denials json, OUT kept integer, OUT dropped text[]) TO node;

REVOKE ALL ON FUNCTION rate_limiter.report_recent_denials(node text, denials json) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.report_recent_denials(node text, denials json) TO node;
GRANT ALL ON FUNCTION rate_limiter.report_recent_denials(node text, denials json) TO server;

REVOKE ALL ON FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea) TO node;
GRANT ALL ON FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea) TO server;

REVOKE ALL ON FUNCTION rate_limiter.revoke_org_token(org text, name text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.revoke_org_token(org text, name text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.rotate_org_token(org text, name text, hash bytea, overlap interval, OUT id bigint, OUT problem text) FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.rotate_org_token(org text, name text, hash bytea, overlap interval, OUT id bigint, OUT problem text) TO server;

REVOKE ALL ON FUNCTION rate_limiter.take_version() FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.token_org(org text) FROM PUBLIC;

REVOKE ALL ON FUNCTION rate_limiter.usage_backlog() FROM PUBLIC;
GRANT ALL ON FUNCTION rate_limiter.usage_backlog() TO node;
GRANT ALL ON FUNCTION rate_limiter.usage_backlog() TO server;

REVOKE ALL ON FUNCTION rate_limiter.want_reason() FROM PUBLIC;

GRANT SELECT ON TABLE rate_limiter.abuse_denials TO operator;
GRANT SELECT ON TABLE rate_limiter.abuse_denials TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.abuse_denials TO keeper;

GRANT SELECT ON TABLE rate_limiter.abuse_state TO operator;
GRANT SELECT ON TABLE rate_limiter.abuse_state TO server;
GRANT SELECT ON TABLE rate_limiter.abuse_state TO keeper;

GRANT UPDATE(scored_until) ON TABLE rate_limiter.abuse_state TO keeper;

GRANT SELECT ON TABLE rate_limiter.abuse_steps TO operator;
GRANT SELECT ON TABLE rate_limiter.abuse_steps TO server;
GRANT SELECT,INSERT,DELETE ON TABLE rate_limiter.abuse_steps TO keeper;

GRANT SELECT ON TABLE rate_limiter.abuse_tenants TO operator;
GRANT SELECT ON TABLE rate_limiter.abuse_tenants TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.abuse_tenants TO keeper;

GRANT SELECT ON TABLE rate_limiter.answers TO operator;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.answers TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.answers TO keeper;

GRANT SELECT ON TABLE rate_limiter.audit TO operator;
GRANT SELECT ON TABLE rate_limiter.audit TO server;

GRANT SELECT ON TABLE rate_limiter.candidate_counts TO operator;
GRANT SELECT ON TABLE rate_limiter.candidate_counts TO server;

GRANT SELECT ON TABLE rate_limiter.candidate_policies TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.candidate_policies TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.candidate_policies TO server;

GRANT SELECT ON TABLE rate_limiter.candidate_reports TO operator;
GRANT SELECT ON TABLE rate_limiter.candidate_reports TO server;

GRANT SELECT ON TABLE rate_limiter.candidate_sources TO operator;
GRANT SELECT ON TABLE rate_limiter.candidate_sources TO server;

GRANT SELECT ON TABLE rate_limiter.candidate_tenants TO node;
GRANT SELECT,INSERT,DELETE ON TABLE rate_limiter.candidate_tenants TO operator;
GRANT SELECT,INSERT,DELETE ON TABLE rate_limiter.candidate_tenants TO server;

GRANT SELECT ON TABLE rate_limiter.candidates TO node;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.candidates TO operator;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.candidates TO server;

GRANT SELECT ON TABLE rate_limiter.changes TO node;
GRANT SELECT ON TABLE rate_limiter.changes TO operator;
GRANT SELECT ON TABLE rate_limiter.changes TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.changes TO keeper;

GRANT SELECT ON TABLE rate_limiter.costs TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.costs TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.costs TO server;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.nodes TO node;
GRANT SELECT,DELETE ON TABLE rate_limiter.nodes TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.nodes TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.nodes TO keeper;

GRANT SELECT ON TABLE rate_limiter.outbox TO operator;
GRANT SELECT ON TABLE rate_limiter.outbox TO server;
GRANT SELECT,INSERT,DELETE ON TABLE rate_limiter.outbox TO keeper;

GRANT UPDATE("position") ON TABLE rate_limiter.outbox TO keeper;

GRANT SELECT ON TABLE rate_limiter.outbox_cursors TO operator;
GRANT SELECT ON TABLE rate_limiter.outbox_cursors TO server;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.outbox_cursors TO keeper;

GRANT SELECT ON TABLE rate_limiter.outbox_state TO operator;
GRANT SELECT ON TABLE rate_limiter.outbox_state TO server;
GRANT SELECT ON TABLE rate_limiter.outbox_state TO keeper;

GRANT UPDATE(last) ON TABLE rate_limiter.outbox_state TO keeper;

GRANT UPDATE(deleted) ON TABLE rate_limiter.outbox_state TO keeper;

GRANT SELECT ON TABLE rate_limiter.override_history TO operator;
GRANT SELECT ON TABLE rate_limiter.override_history TO server;

GRANT SELECT ON TABLE rate_limiter.overrides TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.overrides TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.overrides TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.overrides TO keeper;

GRANT SELECT ON TABLE rate_limiter.policies TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.policies TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.policies TO server;

GRANT SELECT ON TABLE rate_limiter.prices TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.prices TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.prices TO server;

GRANT SELECT ON TABLE rate_limiter.quota_notices TO operator;
GRANT SELECT ON TABLE rate_limiter.quota_notices TO server;
GRANT SELECT,INSERT,DELETE ON TABLE rate_limiter.quota_notices TO keeper;

GRANT SELECT ON TABLE rate_limiter.recent_denial_counts TO operator;
GRANT SELECT ON TABLE rate_limiter.recent_denial_counts TO server;

GRANT SELECT ON TABLE rate_limiter.recent_denials TO operator;
GRANT SELECT ON TABLE rate_limiter.recent_denials TO server;

GRANT SELECT ON TABLE rate_limiter.tenant_tiers TO operator;
GRANT SELECT ON TABLE rate_limiter.tenant_tiers TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.tenant_tiers TO keeper;

GRANT SELECT ON TABLE rate_limiter.tenants TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.tenants TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.tenants TO server;
GRANT SELECT ON TABLE rate_limiter.tenants TO keeper;

GRANT SELECT ON TABLE rate_limiter.tiers TO node;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.tiers TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.tiers TO server;

GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.tokens TO operator;
GRANT SELECT ON TABLE rate_limiter.tokens TO server;

GRANT UPDATE(last_used_at) ON TABLE rate_limiter.tokens TO server;

GRANT SELECT ON TABLE rate_limiter.usage_batches TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_batches TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.usage_batches TO keeper;

GRANT UPDATE(fault) ON TABLE rate_limiter.usage_batches TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_days TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_days TO server;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.usage_days TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_hours TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_hours TO server;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.usage_hours TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_minutes TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_minutes TO server;
GRANT SELECT,INSERT,UPDATE ON TABLE rate_limiter.usage_minutes TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_models TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_models TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.usage_models TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_names TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_names TO server;
GRANT SELECT,INSERT ON TABLE rate_limiter.usage_names TO keeper;

GRANT UPDATE(unit) ON TABLE rate_limiter.usage_names TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_nodes TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_nodes TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.usage_nodes TO keeper;

GRANT UPDATE(batches) ON TABLE rate_limiter.usage_nodes TO keeper;

GRANT UPDATE(bytes) ON TABLE rate_limiter.usage_nodes TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_sources TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_sources TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.usage_sources TO keeper;

GRANT SELECT ON TABLE rate_limiter.usage_state TO operator;
GRANT SELECT ON TABLE rate_limiter.usage_state TO server;
GRANT SELECT ON TABLE rate_limiter.usage_state TO keeper;

GRANT UPDATE(hours_until) ON TABLE rate_limiter.usage_state TO keeper;

GRANT UPDATE(days_until) ON TABLE rate_limiter.usage_state TO keeper;

GRANT UPDATE(changed_since) ON TABLE rate_limiter.usage_state TO keeper;

GRANT UPDATE(checked_at) ON TABLE rate_limiter.usage_state TO keeper;

GRANT SELECT ON TABLE rate_limiter.version TO node;
GRANT SELECT ON TABLE rate_limiter.version TO operator;
GRANT SELECT ON TABLE rate_limiter.version TO server;
GRANT SELECT ON TABLE rate_limiter.version TO keeper;

GRANT UPDATE(pruned) ON TABLE rate_limiter.version TO keeper;

GRANT SELECT,INSERT ON TABLE rate_limiter.webhook_deliveries TO operator;
GRANT SELECT,INSERT ON TABLE rate_limiter.webhook_deliveries TO server;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.webhook_deliveries TO keeper;

GRANT SELECT ON TABLE rate_limiter.webhook_denials TO operator;
GRANT SELECT ON TABLE rate_limiter.webhook_denials TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.webhook_denials TO keeper;

GRANT INSERT ON TABLE rate_limiter.webhook_secrets TO operator;
GRANT INSERT ON TABLE rate_limiter.webhook_secrets TO server;
GRANT SELECT,DELETE ON TABLE rate_limiter.webhook_secrets TO keeper;

GRANT SELECT(id) ON TABLE rate_limiter.webhook_secrets TO operator;
GRANT SELECT(id) ON TABLE rate_limiter.webhook_secrets TO server;

GRANT SELECT(webhook) ON TABLE rate_limiter.webhook_secrets TO operator;
GRANT SELECT(webhook) ON TABLE rate_limiter.webhook_secrets TO server;

GRANT SELECT(signs_until),UPDATE(signs_until) ON TABLE rate_limiter.webhook_secrets TO operator;
GRANT SELECT(signs_until),UPDATE(signs_until) ON TABLE rate_limiter.webhook_secrets TO server;

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.webhooks TO operator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE rate_limiter.webhooks TO server;
GRANT SELECT ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(enabled) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(disabled_for) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(failing_since) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(failures) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(last_error) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(delivered_at) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(hold_until) ON TABLE rate_limiter.webhooks TO keeper;

GRANT UPDATE(dropped) ON TABLE rate_limiter.webhooks TO keeper;

ALTER DEFAULT PRIVILEGES FOR ROLE owner REVOKE ALL ON FUNCTIONS  FROM PUBLIC;
