-- Nodes read how long the usage that they report has been waiting (docs/usage.md). So an alert can report that no process
-- unpacks it, also where no ratelimit serve runs.

-- +goose Up
-- Returns how long ago Postgres received the oldest batch of all nodes that waits to be unpacked; 0: none waits. Batches
-- that were set aside do not wait.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.usage_backlog() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((
        SELECT clock_timestamp() - b.received_at FROM rate_limiter.usage_batches b WHERE b.fault = ''
        ORDER BY b.began LIMIT 1
    ), '0')
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.usage_backlog;
