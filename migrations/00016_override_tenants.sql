-- The overrides of a tenant are found without reading those of all.

-- +goose Up
CREATE INDEX overrides_tenant ON rate_limiter.overrides (tenant, id);

-- +goose Down
DROP INDEX rate_limiter.overrides_tenant;
