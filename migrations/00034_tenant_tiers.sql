-- The tiers that nodes decided by, and where they found them: pages, notices and decisions for callers that are not Kong
-- read here which plan a tenant without a row is on. Nodes report it with their usage. docs/usage.md describes it.

-- +goose Up
CREATE TABLE rate_limiter.tenant_tiers (
    since     timestamptz NOT NULL, -- no later report lacked it for ten minutes
    seen_at   timestamptz NOT NULL, -- the end of the batch that reported it last
    stored_at timestamptz NOT NULL, -- readers fetch what is newer than what they have
    tenant    integer     NOT NULL, -- of usage_names
    namespace text        NOT NULL, -- of the config that decided
    tier      text        NOT NULL,
    source    text        NOT NULL, -- row, default, or as a config names it: consumer.tag.tier
    PRIMARY KEY (tenant, namespace, tier, source)
);
CREATE INDEX tenant_tiers_stored ON rate_limiter.tenant_tiers (stored_at);

-- Policies of one name are found as a range: in usage, daily/default/enterprise is the one of a tier, daily/#12 a row's.
ALTER TABLE rate_limiter.usage_names ALTER COLUMN name TYPE text COLLATE "C";

-- +goose Down
ALTER TABLE rate_limiter.usage_names ALTER COLUMN name TYPE text COLLATE "default";
DROP TABLE rate_limiter.tenant_tiers;
