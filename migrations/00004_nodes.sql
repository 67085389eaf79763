-- What every node says of itself: which version it enforces, since when, and what it could not compile. Reports are no
-- changes: they have no version and leave no record.

-- +goose Up
CREATE TABLE rate_limiter.nodes (
    node        text        PRIMARY KEY, -- one life of one process
    version     bigint      NOT NULL,    -- that it enforces; 0: none from Postgres
    enforced_at timestamptz NOT NULL,    -- since when, by this server's clock
    reported_at timestamptz NOT NULL,    -- by this server's clock
    source      text        NOT NULL DEFAULT 'postgres', -- where it has that version from
    faults      jsonb       NOT NULL DEFAULT '[]',
    CONSTRAINT nodes_node CHECK (octet_length(node) BETWEEN 1 AND 256),
    CONSTRAINT nodes_version CHECK (version >= 0),
    CONSTRAINT nodes_source CHECK (source IN ('postgres', 'disk', 'config')),
    CONSTRAINT nodes_faults CHECK (jsonb_typeof(faults) = 'array')
);
CREATE INDEX nodes_reported ON rate_limiter.nodes (reported_at);

-- +goose Down
DROP TABLE rate_limiter.nodes;
