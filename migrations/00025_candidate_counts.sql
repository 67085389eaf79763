-- What an open candidate would change, as nodes count it: requests by tenant, endpoint and policy, and how many the active
-- policies and the candidate deny. Nodes report it by report_candidate, which is all of it that they may use.
--
-- The policy '' counts the requests themselves, and the other rows count what one policy answers: their sum means nothing.
-- The tenant '' stands for requests without one. Requests of tenants for which the candidate is enforced are not here.

-- +goose Up
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
-- objects with the columns tenant to examples.
--
-- What a login can store is bounded here: the size of a batch, the rows of a candidate, and its processes. A candidate
-- takes counts until an hour after its end. The SQLSTATE 22023 reports a batch that will never be stored.
-- +goose StatementBegin
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
    IF (octet_length(report_candidate.source) BETWEEN 1 AND 256 AND report_candidate.seq >= 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'the source must have a name of 1 to 256 bytes, and seq be at least 1'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF (octet_length(report_candidate.counts::text) <= 4194304 AND json_typeof(report_candidate.counts) = 'array')
        IS NOT TRUE THEN
        RAISE EXCEPTION 'the counts must be an array of at most 4194304 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF report_candidate.age IS NULL THEN
        RAISE EXCEPTION 'the age must be given' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    began := now - least(greatest(report_candidate.age, interval '0'), interval '1 day');
    PERFORM FROM rate_limiter.candidates c
    WHERE c.name = report_candidate.candidate AND (c.ended_at IS NULL OR c.ended_at > now - interval '1 hour');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no candidate %, or it has ended', report_candidate.candidate
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO rate_limiter.candidate_reports (candidate) VALUES (report_candidate.candidate) ON CONFLICT DO NOTHING;
    SELECT most - r.counted INTO STRICT room FROM rate_limiter.candidate_reports r
    WHERE r.candidate = report_candidate.candidate FOR UPDATE; -- one batch after the other
    IF NOT EXISTS (SELECT FROM rate_limiter.candidate_sources s
            WHERE (s.candidate, s.source) = (report_candidate.candidate, report_candidate.source))
        AND (SELECT count(*) FROM rate_limiter.candidate_sources s WHERE s.candidate = report_candidate.candidate) >= 10000
    THEN
        RAISE EXCEPTION 'too many processes have reported candidate %', report_candidate.candidate
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO rate_limiter.candidate_sources AS s (candidate, source, login, last_seq, first_at, last_at)
    VALUES (report_candidate.candidate, report_candidate.source, session_user, report_candidate.seq, began, now)
    ON CONFLICT (candidate, source) DO UPDATE SET last_seq = excluded.last_seq, last_at = excluded.last_at
    WHERE s.last_seq < excluded.last_seq AND s.login = excluded.login;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH valid AS (
        SELECT c.tenant, c.endpoint, c.policy, sum(c.requests)::bigint AS requests, sum(c.active_only)::bigint AS active_only,
            sum(c.candidate_only)::bigint AS candidate_only, sum(c."both")::bigint AS "both",
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
            ON (k.candidate, k.tenant, k.endpoint, k.policy) = (report_candidate.candidate, v.tenant, v.endpoint, v.policy)
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
                    SELECT 0 AS age, n.place, n.one FROM json_array_elements(excluded.examples) WITH ORDINALITY n(one, place)
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
DROP TABLE rate_limiter.candidate_counts, rate_limiter.candidate_reports, rate_limiter.candidate_sources;
