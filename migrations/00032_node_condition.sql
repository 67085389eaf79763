-- What a node reports besides its policies: how many leases it holds, and which Redis it uses. Each Redis is an object
-- with its name and, while it does not answer, the time since then by this server's clock. NULL: an older program has
-- reported, which leaves these columns out.

-- +goose Up
ALTER TABLE rate_limiter.nodes
    ADD COLUMN leases bigint,
    ADD COLUMN redis jsonb,
    ADD CONSTRAINT nodes_leases CHECK (leases >= 0),
    ADD CONSTRAINT nodes_redis CHECK (jsonb_typeof(redis) = 'array'
        AND NOT redis @? '$[*] ? (!(@.type() == "object" && @.name.type() == "string"))'
        AND octet_length(redis::text) <= 65536);

-- +goose Down
ALTER TABLE rate_limiter.nodes DROP COLUMN leases, DROP COLUMN redis;
