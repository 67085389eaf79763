-- How long the decisions of a node took in about the last minute: took[1] counts those below 1 µs, took[i] those from
-- 2^(i-2) µs to below 2^(i-1) µs, the last one also longer ones. Null: the node is of a version without it.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.nodes
    ADD took bigint[] CONSTRAINT nodes_took CHECK (cardinality(took) <= 32 AND array_ndims(took) = 1
        AND array_position(took, NULL) IS NULL AND 0 <= ALL (took));
-- +goose StatementEnd

-- +goose Down
ALTER TABLE rate_limiter.nodes DROP took;
