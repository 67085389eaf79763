-- Candidates: changes to the active policies that are tried beside these, until one step promotes all of them
-- (docs/rollout.md). And what they would change, as nodes count it.
--
-- A candidate is a difference and not a copy: the policies that it puts, and those that it deletes. Nodes lay it over
-- the active policies. At most one candidate is open. No name is used twice: buckets and counts are kept under it.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.candidates (
    name         text        PRIMARY KEY CONSTRAINT candidates_name CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    state        text        NOT NULL DEFAULT 'open',
    percent      integer     NOT NULL DEFAULT 0, -- of all tenants, for which the candidate is enforced
    base_version bigint      NOT NULL DEFAULT 0, -- of the policies that it changes; an update takes the current one
    base_audit   bigint      NOT NULL DEFAULT 0, -- the last audit row of that version
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL DEFAULT '',
    reason       text        NOT NULL DEFAULT '',
    ended_at     timestamptz, -- the last change of the state; null: it is open
    ended_by     text        NOT NULL DEFAULT '',
    end_reason   text        NOT NULL DEFAULT '',
    revision     bigint      NOT NULL DEFAULT 1,
    CONSTRAINT candidates_state CHECK (state IN ('open', 'promoted', 'rolled_back', 'dropped')),
    CONSTRAINT candidates_percent CHECK (percent BETWEEN 0 AND 100),
    CONSTRAINT candidates_ended_at CHECK ((state = 'open') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX candidates_one_open ON rate_limiter.candidates (state) WHERE state = 'open';

CREATE TABLE rate_limiter.candidate_policies (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    candidate  text   NOT NULL REFERENCES rate_limiter.candidates,
    namespace  text   NOT NULL DEFAULT 'default', -- to endpoint, and user to for: the key of the policy
    name       text   NOT NULL CONSTRAINT candidate_policies_name CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    tier       text   NOT NULL DEFAULT '' CONSTRAINT candidate_policies_tier CHECK (octet_length(tier) <= 64),
    tenant     text   NOT NULL DEFAULT '' CONSTRAINT candidate_policies_tenant CHECK (octet_length(tenant) <= 128),
    endpoint   text   NOT NULL DEFAULT '',
    body       jsonb, -- the policy, as the REST API writes it, with its defaults; null: the active one is deleted
    was        jsonb, -- the active policy that the promotion replaced; null: there was none
    revision   bigint NOT NULL DEFAULT 1,
    "user"     text   NOT NULL DEFAULT '' CONSTRAINT candidate_policies_user CHECK (octet_length("user") <= 128),
    credential text   NOT NULL DEFAULT '',
    ip         text   NOT NULL DEFAULT '',
    "for"      text   NOT NULL DEFAULT '' CONSTRAINT candidate_policies_for CHECK ("for" IN ('', 'all', 'anonymous')),
    CONSTRAINT candidate_policies_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT candidate_policies_credential CHECK (octet_length(credential) <= 128),
    CONSTRAINT candidate_policies_ip CHECK (ip = '' OR (octet_length(ip) <= 64 AND rate_limiter.is_address(ip))),
    CONSTRAINT candidate_policies_target CHECK (("user" = '' OR tenant <> '')
        AND (tier <> '')::int + (tenant <> '')::int + (credential <> '')::int + (ip <> '')::int
            + ("for" <> '')::int = 1),
    CONSTRAINT candidate_policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT candidate_policies_body CHECK (body IS NULL OR coalesce(
        jsonb_typeof(body) = 'object' AND octet_length(body::text) <= 32768
        AND (body ->> 'namespace', body ->> 'name', coalesce(body ->> 'tier', ''), coalesce(body ->> 'tenant', ''),
            coalesce(body ->> 'endpoint', '')) = (namespace, name, tier, tenant, endpoint),
        false)),
    CONSTRAINT candidate_policies_body_target CHECK (body IS NULL
        OR (coalesce(body ->> 'user', ''), coalesce(body ->> 'credential', ''), coalesce(body ->> 'ip', ''),
            coalesce(body ->> 'for', '')) = ("user", credential, ip, "for"))
);
CREATE UNIQUE INDEX candidate_policies_one_per_match ON rate_limiter.candidate_policies
    (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential, ip,
    "for");

-- The tenants for which the candidate is enforced, beside the percentage.
CREATE TABLE rate_limiter.candidate_tenants (
    candidate text   NOT NULL REFERENCES rate_limiter.candidates,
    tenant    text   NOT NULL CONSTRAINT candidate_tenants_tenant CHECK (octet_length(tenant) BETWEEN 1 AND 128),
    revision  bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (candidate, tenant)
);
-- Fills in who has made or ended a candidate, when and why, and its base. Denies all changes of the state but these:
-- open, then promoted or dropped; promoted, then rolled back. A candidate that is not open changes in nothing else.
CREATE FUNCTION rate_limiter.keep_candidate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
-- Denies changes of the policies and tenants of a candidate that is not open.
CREATE FUNCTION rate_limiter.keep_candidate_open() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
CALL rate_limiter.keep_record('rate_limiter.candidates', 'candidate', 'name', 'tenant');
CALL rate_limiter.keep_record('rate_limiter.candidate_policies', 'candidate_policy', 'id', 'tenant');
CALL rate_limiter.keep_record('rate_limiter.candidate_tenants', 'candidate_tenant', 'tenant', 'tenant');
CREATE TRIGGER candidates_kept BEFORE INSERT OR UPDATE ON rate_limiter.candidates
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate();
CREATE TRIGGER candidates_stay BEFORE DELETE ON rate_limiter.candidates
    EXECUTE FUNCTION rate_limiter.refuse('drop the candidate: its row stays, so that no other one takes its name');
CREATE TRIGGER candidate_policies_open BEFORE INSERT OR UPDATE OR DELETE ON rate_limiter.candidate_policies
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();
CREATE TRIGGER candidate_tenants_open BEFORE INSERT OR UPDATE OR DELETE ON rate_limiter.candidate_tenants
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();

-- What an open candidate would change: requests by tenant, endpoint and policy, and how many the active policies and
-- the candidate deny. The policy '' counts the requests themselves, and the other rows count what one policy answers:
-- their sum means nothing. Requests of tenants for which the candidate is enforced are not here.
CREATE TABLE rate_limiter.candidate_counts (
    candidate      text        NOT NULL REFERENCES rate_limiter.candidates,
    tenant         text        NOT NULL,
    endpoint       text        NOT NULL,
    policy         text        NOT NULL,
    requests       bigint      NOT NULL, -- that were compared
    active_only    bigint      NOT NULL, -- denied by the active policies, admitted by the candidate
    candidate_only bigint      NOT NULL, -- the other way
    "both"         bigint      NOT NULL, -- denied by both
    examples       json        NOT NULL, -- of requests that they answer differently, the latest first, at most ten
    first_at       timestamptz NOT NULL,
    last_at        timestamptz NOT NULL,
    PRIMARY KEY (candidate, tenant, endpoint, policy)
);
-- How many rows a candidate has, and how many counts found no room for one.
CREATE TABLE rate_limiter.candidate_reports (
    candidate text   PRIMARY KEY REFERENCES rate_limiter.candidates,
    counted   bigint NOT NULL DEFAULT 0,
    dropped   bigint NOT NULL DEFAULT 0
);
-- The last batch of each process, so that none is added twice, and since when it reports.
CREATE TABLE rate_limiter.candidate_sources (
    candidate text        NOT NULL REFERENCES rate_limiter.candidates,
    source    text        NOT NULL, -- one run of one process
    login     text        NOT NULL, -- the database user that reported it
    last_seq  bigint      NOT NULL,
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    PRIMARY KEY (candidate, source)
);
-- Adds a batch of a process, whose counts began age ago. Returns false if it was added before. counts is an array of
-- objects with the columns tenant to examples. Bounded are the size of a batch, the rows of a candidate, and its
-- processes. A candidate takes counts until an hour after its end.
CREATE FUNCTION rate_limiter.report_candidate(source text, candidate text, seq bigint, age interval, counts json)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.report_candidate;
DROP TABLE rate_limiter.candidate_counts, rate_limiter.candidate_reports, rate_limiter.candidate_sources,
    rate_limiter.candidate_tenants, rate_limiter.candidate_policies, rate_limiter.candidates;
DROP FUNCTION rate_limiter.keep_candidate, rate_limiter.keep_candidate_open;
