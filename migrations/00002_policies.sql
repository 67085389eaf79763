-- Tiers, tenants and policies. Fields are named, and their values limited, as in the plugin's config. An empty text means
-- absent, as it does there; an absent number is null. The name of a constraint begins with its table and tells the field.
--
-- Whoever is named in more than 128 bytes is counted by a hash, which is what a row names then.
--
-- A constraint here sees one row. Whether a limit's arithmetic stays exact, and whether two patterns are ambiguous, is
-- for whoever compiles the rows: a row that does not compile is reported, and its last good value stays in force.

-- +goose Up
CREATE TABLE rate_limiter.tiers (
    name        text   PRIMARY KEY,
    description text   NOT NULL DEFAULT '',
    revision    bigint NOT NULL DEFAULT 1,
    CONSTRAINT tiers_name CHECK (octet_length(name) BETWEEN 1 AND 64),
    CONSTRAINT tiers_description CHECK (octet_length(description) <= 1024)
);
CALL rate_limiter.keep_record('rate_limiter.tiers', 'tier', 'name', 'tenant');

-- A tier that is in no table is not refused here: the plugin's config may have it. Nodes report one that nobody has.
CREATE TABLE rate_limiter.tenants (
    id        text   PRIMARY KEY,
    tier      text   NOT NULL DEFAULT '', -- empty: as the request's identity says
    time_zone text   NOT NULL DEFAULT '', -- IANA name; empty: UTC
    revision  bigint NOT NULL DEFAULT 1,
    CONSTRAINT tenants_id CHECK (octet_length(id) BETWEEN 1 AND 128),
    CONSTRAINT tenants_tier CHECK (octet_length(tier) <= 64),
    CONSTRAINT tenants_time_zone CHECK (time_zone = '' OR (octet_length(time_zone) <= 64 AND time_zone ~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$'))
);
CALL rate_limiter.keep_record('rate_limiter.tenants', 'tenant', 'id', 'id');

-- Patterns that differ in the names of parameters alone match the same requests.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.canonical_endpoint(endpoint text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(endpoint, '\{[^}]*\}', '{}', 'g')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION rate_limiter.is_endpoint(endpoint text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT endpoint = '' OR (octet_length(endpoint) <= 1024 AND endpoint ~ '^[A-Z*-]+ /[^ ]*$')
$$;
-- +goose StatementEnd

CREATE TABLE rate_limiter.policies (
    id                 bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace          text    NOT NULL DEFAULT 'default',
    name               text    NOT NULL,
    tier               text    NOT NULL DEFAULT '', -- whom it is for: every tenant of this tier,
    tenant             text    NOT NULL DEFAULT '', -- or this tenant
    endpoint           text    NOT NULL DEFAULT '', -- only these requests
    scope              text    NOT NULL,
    "limit"            bigint  NOT NULL, -- tokens
    window_size        bigint  NOT NULL, -- seconds
    algorithm          text    NOT NULL DEFAULT 'token_bucket',
    burst              bigint, -- tokens
    soft_threshold_pct bigint, -- percent
    hard_threshold_pct bigint, -- percent
    soft_only          boolean NOT NULL DEFAULT false,
    mode               text    NOT NULL DEFAULT '',
    cost               bigint, -- tokens
    fail_mode          text    NOT NULL DEFAULT '',
    slot               text    NOT NULL DEFAULT 'active', -- candidate: beside the active one, evaluated in shadow
    revision           bigint  NOT NULL DEFAULT 1,
    CONSTRAINT policies_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT policies_name CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT policies_tier CHECK (octet_length(tier) <= 64),
    CONSTRAINT policies_tenant CHECK (octet_length(tenant) <= 128),
    CONSTRAINT policies_tier_or_tenant CHECK ((tier = '') <> (tenant = '')),
    CONSTRAINT policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT policies_scope CHECK (scope IN ('tenant', 'user', 'credential', 'ip', 'endpoint', 'global', 'tenant+endpoint', 'user+endpoint')),
    CONSTRAINT policies_limit CHECK ("limit" BETWEEN 1 AND 1000000000000),
    CONSTRAINT policies_limit_sliding_log CHECK (algorithm <> 'sliding_log' OR "limit" <= 10000),
    CONSTRAINT policies_window_size CHECK (window_size BETWEEN 1 AND 31622400),
    CONSTRAINT policies_algorithm CHECK (algorithm IN ('token_bucket', 'leaky_bucket', 'fixed_window', 'sliding_window', 'sliding_log')),
    CONSTRAINT policies_burst CHECK (burst BETWEEN 1 AND 1000000000000),
    CONSTRAINT policies_burst_algorithm CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'leaky_bucket')),
    CONSTRAINT policies_soft_threshold_pct CHECK (soft_threshold_pct BETWEEN 1 AND 1000),
    CONSTRAINT policies_soft_above_hard CHECK (soft_only OR soft_threshold_pct <= coalesce(hard_threshold_pct, 100)),
    CONSTRAINT policies_hard_threshold_pct CHECK (hard_threshold_pct BETWEEN 100 AND 1000),
    CONSTRAINT policies_hard_soft_only CHECK (hard_threshold_pct IS NULL OR NOT soft_only),
    CONSTRAINT policies_mode CHECK (mode IN ('', 'enforce', 'shadow', 'log')),
    CONSTRAINT policies_cost CHECK (cost BETWEEN 0 AND 1000000000),
    CONSTRAINT policies_cost_capacity CHECK (soft_only OR cost <= -- else every request would be refused
        CASE algorithm WHEN 'token_bucket' THEN coalesce(burst, "limit") WHEN 'leaky_bucket' THEN coalesce(burst, 1) ELSE "limit" END
        * CASE WHEN soft_threshold_pct IS NULL THEN 100 ELSE coalesce(hard_threshold_pct, 100) END / 100),
    CONSTRAINT policies_fail_mode CHECK (fail_mode IN ('', 'open', 'closed', 'local')),
    CONSTRAINT policies_slot CHECK (slot IN ('active', 'candidate'))
);
-- Of one name and one match there is one policy.
CREATE UNIQUE INDEX policies_one_per_match ON rate_limiter.policies
    (tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, slot);
CREATE INDEX policies_tier_index ON rate_limiter.policies (tier) WHERE tier <> '';
CALL rate_limiter.keep_record('rate_limiter.policies', 'policy', 'id', 'tenant');

-- +goose Down
DROP TABLE rate_limiter.policies, rate_limiter.tenants, rate_limiter.tiers;
DROP FUNCTION rate_limiter.is_endpoint, rate_limiter.canonical_endpoint;
