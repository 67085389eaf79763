-- The grants of migrations/README.md before 00007.
-- A node reads, and reports.
GRANT USAGE ON SCHEMA rate_limiter TO node;
GRANT SELECT ON rate_limiter.version, rate_limiter.changes, rate_limiter.tiers, rate_limiter.tenants,
    rate_limiter.policies, rate_limiter.overrides TO node;
GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limiter.nodes TO node;

-- An operator reads everything, writes policies, and makes and revokes tokens.
GRANT USAGE ON SCHEMA rate_limiter TO operator;
GRANT SELECT ON ALL TABLES IN SCHEMA rate_limiter TO operator;
GRANT INSERT, UPDATE, DELETE ON rate_limiter.tiers, rate_limiter.tenants, rate_limiter.policies,
    rate_limiter.overrides TO operator;
GRANT INSERT, UPDATE ON rate_limiter.tokens TO operator;

-- The process that serves the REST API writes for others, and makes no tokens.
GRANT USAGE ON SCHEMA rate_limiter TO server;
GRANT SELECT ON ALL TABLES IN SCHEMA rate_limiter TO server;
GRANT INSERT, UPDATE, DELETE ON rate_limiter.tiers, rate_limiter.tenants, rate_limiter.policies,
    rate_limiter.overrides TO server;
GRANT INSERT, UPDATE ON rate_limiter.answers TO server;
GRANT UPDATE (last_used_at) ON rate_limiter.tokens TO server;
GRANT INSERT, UPDATE, DELETE ON rate_limiter.nodes TO server; -- with --config it decides, and reports as a node

-- Whoever moves expired overrides to the history and prunes the changes, beside that.
GRANT DELETE ON rate_limiter.overrides, rate_limiter.changes, rate_limiter.nodes, rate_limiter.answers TO keeper;
GRANT UPDATE ON rate_limiter.version TO keeper;
