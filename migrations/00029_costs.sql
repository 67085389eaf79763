-- What requests to an endpoint cost, for all plugin configs of a namespace: entries of the config's table costs that change
-- at run time. A row goes before the config's table, whichever of the two has the narrower endpoint.
--
-- The kind in the table of changes is cost, and the key is the id. Nodes of the version before skip this kind: they charge
-- what their config says.

-- +goose Up
CREATE TABLE rate_limiter.costs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text   NOT NULL DEFAULT 'default',
    endpoint  text   NOT NULL,
    cost      bigint NOT NULL, -- tokens; 0: free
    revision  bigint NOT NULL DEFAULT 1,
    CONSTRAINT costs_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT costs_endpoint CHECK (endpoint <> '' AND rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT costs_cost CHECK (cost BETWEEN 0 AND 1000000000)
);
CREATE UNIQUE INDEX costs_one_per_endpoint ON rate_limiter.costs (namespace, rate_limiter.canonical_endpoint(endpoint));
CALL rate_limiter.keep_record('rate_limiter.costs', 'cost', 'id', 'tenant');

-- Publishes the changes of costs too.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.publish_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function publish_changes is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
    SELECT 'audit-' || n.id, '/control', 'io.github.tenant-rate-limiting.policy.updated', n.at, n.tenant,
        json_build_object('version', 1, 'policy_version', n.version, 'kind', n.kind, 'operation', n.operation, 'key', n.key,
            'org', n.tenant, 'actor', n.actor, 'reason', n.reason, 'before', n.before, 'after', n.after)
    FROM new_rows n WHERE n.kind IN ('tier', 'tenant', 'policy', 'override', 'cost') ORDER BY n.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE rate_limiter.costs;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.publish_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function publish_changes is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.outbox (event, source, type, at, tenant, data)
    SELECT 'audit-' || n.id, '/control', 'io.github.tenant-rate-limiting.policy.updated', n.at, n.tenant,
        json_build_object('version', 1, 'policy_version', n.version, 'kind', n.kind, 'operation', n.operation, 'key', n.key,
            'org', n.tenant, 'actor', n.actor, 'reason', n.reason, 'before', n.before, 'after', n.after)
    FROM new_rows n WHERE n.kind IN ('tier', 'tenant', 'policy', 'override') ORDER BY n.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
