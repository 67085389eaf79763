-- What every node reports of itself: which version it enforces, since when, what it could not compile, how many leases
-- it holds, and which Redis it uses. Reports are no changes: they have no version and leave no record. Their size and
-- number are bounded, because a stolen login of a node can write them.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.nodes (
    node        text        PRIMARY KEY, -- one life of one process
    version     bigint      NOT NULL,    -- that it enforces; 0: none from Postgres
    enforced_at timestamptz NOT NULL,    -- since when, by this server's clock
    reported_at timestamptz NOT NULL,    -- by this server's clock
    source      text        NOT NULL DEFAULT 'postgres', -- where it has that version from
    faults      jsonb       NOT NULL DEFAULT '[]' CONSTRAINT nodes_faults CHECK (jsonb_typeof(faults) = 'array'),
    -- A node that started after a change does not count in how long the change took.
    first_reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    leases      bigint CONSTRAINT nodes_leases CHECK (leases >= 0),
    redis       jsonb, -- objects with a name and, while that Redis does not answer, away_since, by this server's clock
    CONSTRAINT nodes_node CHECK (octet_length(node) BETWEEN 1 AND 256),
    CONSTRAINT nodes_version CHECK (version >= 0),
    CONSTRAINT nodes_source CHECK (source IN ('postgres', 'disk', 'config')),
    CONSTRAINT nodes_faults_size CHECK (octet_length(faults::text) <= 65536),
    CONSTRAINT nodes_redis CHECK (jsonb_typeof(redis) = 'array'
        AND NOT redis @? '$[*] ? (!(@.type() == "object" && @.name.type() == "string"))'
        AND octet_length(redis::text) <= 65536),
    -- Readers show the reports of all nodes. JSON holds only instants of years with four digits, in RFC 3339.
    CONSTRAINT nodes_instants CHECK (
        least(enforced_at, first_reported_at, reported_at) >= '1970-01-01 00:00+00'
        AND greatest(enforced_at, first_reported_at, reported_at) < '9999-01-01 00:00+00'),
    CONSTRAINT nodes_redis_away CHECK (NOT redis @? 'strict $[*] ? (@.type() != "object" || exists (@.away_since)
        && !(@.away_since.type() == "string" && @.away_since like_regex "^(19[7-9]|[2-8][0-9][0-9])[0-9]-'
        '[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-2][0-9]:[0-5][0-9])$"))')
);
CREATE INDEX nodes_reported ON rate_limiter.nodes (reported_at);

-- Drops all reports but the newest 2,000. Runs once for each new node, with its rights: it may delete reports anyway.
CREATE FUNCTION rate_limiter.drop_old_reports() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM rate_limiter.nodes n WHERE (n.reported_at, n.node) < (
        SELECT o.reported_at, o.node FROM rate_limiter.nodes o ORDER BY 1 DESC, 2 DESC OFFSET 1999 LIMIT 1);
    RETURN NULL;
END
$$;
CREATE TRIGGER nodes_bound AFTER INSERT ON rate_limiter.nodes
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.drop_old_reports();
-- +goose StatementEnd

-- +goose Down
DROP TABLE rate_limiter.nodes;
DROP FUNCTION rate_limiter.drop_old_reports;
