-- What pages and lists read often is found by an index, or is side by side on the disk.

-- +goose Up
-- Tenants in the order of lists, and those whose names begin with a text.
CREATE INDEX tenants_order ON rate_limiter.tenants (id COLLATE "C");

-- The last change of a candidate's policies.
CREATE INDEX audit_candidate ON rate_limiter.audit ((coalesce(after, before) ->> 'candidate'), version)
    WHERE kind = 'candidate_policy';

-- Denials by a policy or at an endpoint that denies seldom.
CREATE INDEX recent_denials_policy ON rate_limiter.recent_denials (policy, at, id);
CREATE INDEX recent_denials_endpoint ON rate_limiter.recent_denials (endpoint, at, id);

-- Stores the minutes from first until another time anew, ordered by tenant, and returns how many rows these are. The
-- leader adds rows minute by minute, so those of a tenant are on as many pages as there are minutes. It calls this once
-- for each hour, when that is summed up. No row changes, so the role that executes it needs no right to delete.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.order_usage_minutes(first timestamptz, until timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (
        DELETE FROM rate_limiter.usage_minutes m WHERE m.at >= $1 AND m.at < $2 RETURNING m.*
    ), stored AS (
        INSERT INTO rate_limiter.usage_minutes SELECT g.* FROM gone g ORDER BY g.tenant, g.at RETURNING 1
    ) SELECT count(*) FROM stored
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.order_usage_minutes;
DROP INDEX rate_limiter.tenants_order, rate_limiter.audit_candidate, rate_limiter.recent_denials_policy,
    rate_limiter.recent_denials_endpoint;
