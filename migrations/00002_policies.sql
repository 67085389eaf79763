-- Tiers, tenants, policies, and what requests cost. Fields are named, and their values limited, as in the plugin's
-- config. An empty text means absent, as it does there; an absent number is null. The name of a constraint begins with
-- its table and names the field. A name of more than 128 bytes is counted by a hash, which is what a row names then.
--
-- A constraint here sees one row. Whether a limit's arithmetic stays exact, and whether two patterns are ambiguous, is
-- checked where the rows are compiled: a row that does not compile is reported, and its last good value stays in force.

-- +goose Up
-- +goose StatementBegin
CREATE TABLE rate_limiter.tiers (
    name        text   PRIMARY KEY CONSTRAINT tiers_name CHECK (octet_length(name) BETWEEN 1 AND 64),
    description text   NOT NULL DEFAULT '' CONSTRAINT tiers_description CHECK (octet_length(description) <= 1024),
    revision    bigint NOT NULL DEFAULT 1
);
CALL rate_limiter.keep_record('rate_limiter.tiers', 'tier', 'name', 'tenant');

-- A tier that is in no table is accepted here: the plugin's config may have it. Nodes report one that neither has.
CREATE TABLE rate_limiter.tenants (
    id        text   PRIMARY KEY CONSTRAINT tenants_id CHECK (octet_length(id) BETWEEN 1 AND 128),
    tier      text   NOT NULL DEFAULT '', -- empty: as the request's identity says
    time_zone text   NOT NULL DEFAULT '', -- IANA name; empty: UTC
    revision  bigint NOT NULL DEFAULT 1,
    CONSTRAINT tenants_tier CHECK (octet_length(tier) <= 64),
    CONSTRAINT tenants_time_zone CHECK (time_zone = ''
        OR (octet_length(time_zone) <= 64 AND time_zone ~ '^[A-Za-z]+[A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$'))
);
-- Tenants in the order of lists, and those whose names begin with a text.
CREATE INDEX tenants_order ON rate_limiter.tenants (id COLLATE "C");
CALL rate_limiter.keep_record('rate_limiter.tenants', 'tenant', 'id', 'id');

-- Patterns that differ only in the names of parameters match the same requests.
CREATE FUNCTION rate_limiter.canonical_endpoint(endpoint text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT regexp_replace(endpoint, '\{[^}]*\}', '{}', 'g')
$$;

CREATE FUNCTION rate_limiter.is_endpoint(endpoint text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT endpoint = '' OR (octet_length(endpoint) <= 1024 AND endpoint ~ '^[A-Z*-]+ /[^ ]*$')
$$;

-- One address; or a network without bits to its right, of which an IPv4 address is none.
CREATE FUNCTION rate_limiter.is_address(ip text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE family(ip::inet)
        WHEN 4 THEN host(ip::inet) = ip OR (network(ip::inet)::text = ip AND masklen(ip::inet) < 32)
        ELSE ip::inet = network(ip::inet) END;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END
$$;
CREATE TABLE rate_limiter.policies (
    id                 bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace          text    NOT NULL DEFAULT 'default',
    name               text    NOT NULL CONSTRAINT policies_name CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    tier               text    NOT NULL DEFAULT '', -- whom it is for: every tenant of this tier,
    tenant             text    NOT NULL DEFAULT '', -- or this tenant; user to for are other targets
    endpoint           text    NOT NULL DEFAULT '', -- only these requests
    scope              text    NOT NULL,
    "limit"            bigint  NOT NULL CONSTRAINT policies_limit CHECK ("limit" BETWEEN 1 AND 1000000000000), -- tokens
    window_size        bigint  NOT NULL, -- seconds
    algorithm          text    NOT NULL DEFAULT 'token_bucket',
    burst              bigint CONSTRAINT policies_burst CHECK (burst BETWEEN 1 AND 1000000000000), -- tokens
    soft_threshold_pct bigint, -- percent
    hard_threshold_pct bigint, -- percent
    soft_only          boolean NOT NULL DEFAULT false,
    mode               text    NOT NULL DEFAULT '',
    cost               bigint CONSTRAINT policies_cost CHECK (cost BETWEEN 0 AND 1000000000), -- tokens
    fail_mode          text    NOT NULL DEFAULT '',
    revision           bigint  NOT NULL DEFAULT 1,
    accuracy           text    NOT NULL DEFAULT '', -- leased, exact, or empty: as in the plugin's config
    public_note        text    NOT NULL DEFAULT '', -- what a tenant reads of it
    description        text    NOT NULL DEFAULT '', -- what it is for: clients read it where it denies their requests
    settle             jsonb, -- how it charges after the response what a request really used; null: it does not
    fair               jsonb, -- the weights by which its bucket is divided among tenants; null: it is not
    "user"             text    NOT NULL DEFAULT '', -- of the tenant
    credential         text    NOT NULL DEFAULT '',
    ip                 text    NOT NULL DEFAULT '', -- one address, or a network
    "for"              text    NOT NULL DEFAULT '', -- all requests, or the anonymous ones
    CONSTRAINT policies_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT policies_tier CHECK (octet_length(tier) <= 64),
    CONSTRAINT policies_tenant CHECK (octet_length(tenant) <= 128),
    CONSTRAINT policies_user CHECK (octet_length("user") <= 128),
    CONSTRAINT policies_credential CHECK (octet_length(credential) <= 128),
    CONSTRAINT policies_ip CHECK (ip = '' OR (octet_length(ip) <= 64 AND rate_limiter.is_address(ip))),
    CONSTRAINT policies_ip_all CHECK (ip NOT LIKE '%/0'),
    CONSTRAINT policies_for CHECK ("for" IN ('', 'all', 'anonymous')),
    CONSTRAINT policies_target CHECK (("user" = '' OR tenant <> '')
        AND (tier <> '')::int + (tenant <> '')::int + (credential <> '')::int + (ip <> '')::int
            + ("for" <> '')::int = 1),
    CONSTRAINT policies_target_scope CHECK (
        CASE WHEN "user" <> '' THEN scope IN ('user', 'user+endpoint')
             WHEN credential <> '' THEN scope = 'credential'
             WHEN ip <> '' THEN scope IN ('ip', 'global')
             WHEN "for" <> '' THEN scope IN ('global', 'endpoint', 'ip')
             ELSE true END),
    CONSTRAINT policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT policies_scope CHECK (scope IN ('tenant', 'user', 'credential', 'ip', 'endpoint', 'global',
        'tenant+endpoint', 'user+endpoint')),
    CONSTRAINT policies_limit_sliding_log CHECK (algorithm <> 'sliding_log' OR "limit" <= 10000),
    CONSTRAINT policies_window_size CHECK (window_size BETWEEN 1 AND 31622400),
    CONSTRAINT policies_algorithm CHECK (algorithm IN ('token_bucket', 'leaky_bucket', 'fixed_window', 'sliding_window',
        'sliding_log')),
    CONSTRAINT policies_burst_algorithm CHECK (burst IS NULL OR algorithm IN ('token_bucket', 'leaky_bucket')),
    CONSTRAINT policies_soft_threshold_pct CHECK (soft_threshold_pct BETWEEN 1 AND 1000),
    CONSTRAINT policies_soft_above_hard CHECK (soft_only OR soft_threshold_pct <= coalesce(hard_threshold_pct, 100)),
    CONSTRAINT policies_hard_threshold_pct CHECK (hard_threshold_pct BETWEEN 100 AND 1000),
    CONSTRAINT policies_hard_soft_only CHECK (hard_threshold_pct IS NULL OR NOT soft_only),
    CONSTRAINT policies_mode CHECK (mode IN ('', 'enforce', 'shadow', 'log')),
    CONSTRAINT policies_cost_capacity CHECK (soft_only OR cost <= -- else every request would be denied
        CASE algorithm WHEN 'token_bucket' THEN coalesce(burst, "limit") WHEN 'leaky_bucket' THEN coalesce(burst, 1)
            ELSE "limit" END
        * CASE WHEN soft_threshold_pct IS NULL THEN 100 ELSE coalesce(hard_threshold_pct, 100) END / 100),
    CONSTRAINT policies_fail_mode CHECK (fail_mode IN ('', 'open', 'closed', 'local')),
    CONSTRAINT policies_accuracy CHECK (accuracy IN ('', 'leased', 'exact')),
    CONSTRAINT policies_public_note CHECK (octet_length(public_note) <= 1024 AND public_note !~ '[[:cntrl:]]'),
    CONSTRAINT policies_description CHECK (octet_length(description) <= 200 AND description !~ '[[:cntrl:]]'),
    -- Bounds what a row can hold, so that every reader can decode it. Nodes check the sources themselves.
    CONSTRAINT policies_settle CHECK (settle IS NULL OR coalesce(
        jsonb_typeof(settle) = 'object'
        AND octet_length(settle::text) <= 8192
        AND settle::text !~ '(: |, |\[)-?[0-9]+[.]'
        AND jsonb_typeof(settle -> 'sources') = 'array'
        AND NOT settle @? '$ ? (@.sources.size() < 1 || @.sources.size() > 8)'
        AND NOT settle @? '$.sources[*].type() ? (@ != "object")'
        AND NOT settle @? '$.sources[*] ? (!(@.from.type() == "string"
            && @.from like_regex "^(header|log|shared)[.][A-Za-z0-9_.*-]+$"))'
        AND NOT settle @? '$.sources[*] ? (exists(@.weight)
            && !(@.weight.type() == "number" && @.weight >= 1 && @.weight <= 1000000))'
        AND NOT settle @? '$ ? (exists(@.reserve)
            && !(@.reserve.type() == "number" && @.reserve >= 1 && @.reserve <= 1000000000000))'
        AND NOT settle @? '$ ? (exists(@.reserve_header)
            && !(@.reserve_header.type() == "string" && @.reserve_header like_regex "^[A-Za-z0-9_-]{1,128}$"))'
        AND NOT settle @? '$ ? (exists(@.reserve_max)
            && !(@.reserve_max.type() == "number" && @.reserve_max >= 1 && @.reserve_max <= 1000000000000))'
        AND (settle ? 'reserve_header') = (settle ? 'reserve_max')
        AND coalesce(jsonb_typeof(settle -> 'refund_on'), 'array') = 'array'
        AND NOT settle @? '$.refund_on[*].type() ? (@ != "number")'
        AND NOT settle @? '$.refund_on[*] ? (@ < 100 || @ > 599)'
        AND NOT settle @? '$ ? (exists(@.timeout)
            && !(@.timeout.type() == "number" && @.timeout >= 1 && @.timeout <= 86400))',
        false)),
    CONSTRAINT policies_settle_algorithm CHECK (settle IS NULL OR algorithm IN ('token_bucket', 'fixed_window')),
    CONSTRAINT policies_settle_soft_only CHECK (settle IS NULL OR NOT soft_only),
    CONSTRAINT policies_fair CHECK (fair IS NULL OR coalesce(
        jsonb_typeof(fair) = 'object'
        AND octet_length(fair::text) <= 8192
        AND fair::text !~ '(: |, |\[)-?[0-9]+[.]'
        AND coalesce(jsonb_typeof(fair -> 'weights'), 'object') = 'object'
        AND NOT fair @? '$.weights.keyvalue() ? (!(@.value.type() == "number" && @.value >= 1 && @.value <= 1000))'
        AND NOT fair @? '$ ? (exists(@.default)
            && !(@.default.type() == "number" && @.default >= 1 && @.default <= 1000))',
        false)),
    CONSTRAINT policies_fair_scope CHECK (fair IS NULL OR scope IN ('global', 'endpoint')),
    CONSTRAINT policies_fair_algorithm CHECK (fair IS NULL OR algorithm = 'token_bucket'),
    CONSTRAINT policies_fair_soft_only CHECK (fair IS NULL OR NOT soft_only),
    CONSTRAINT policies_fair_window_size CHECK (fair IS NULL OR window_size <= 3599),
    CONSTRAINT policies_fair_limit CHECK (fair IS NULL OR "limit" / window_size >= 10),
    CONSTRAINT policies_fair_burst CHECK (fair IS NULL OR coalesce(burst, "limit") >= "limit" / window_size)
);
-- Of one name and one match there is one policy.
CREATE UNIQUE INDEX policies_one_per_match ON rate_limiter.policies
    (tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential, ip, "for");
CREATE INDEX policies_tier_index ON rate_limiter.policies (tier) WHERE tier <> '';
CALL rate_limiter.keep_record('rate_limiter.policies', 'policy', 'id', 'tenant');

-- What requests to an endpoint cost, for all plugin configs of a namespace: entries of the config's table costs that
-- change at run time. A row goes before the config's table, whichever of the two has the narrower endpoint.
CREATE TABLE rate_limiter.costs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text   NOT NULL DEFAULT 'default' CONSTRAINT costs_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    endpoint  text   NOT NULL CONSTRAINT costs_endpoint CHECK (endpoint <> '' AND rate_limiter.is_endpoint(endpoint)),
    cost      bigint NOT NULL CONSTRAINT costs_cost CHECK (cost BETWEEN 0 AND 1000000000), -- tokens; 0: free
    revision  bigint NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX costs_one_per_endpoint ON rate_limiter.costs (namespace, rate_limiter.canonical_endpoint(endpoint));
CALL rate_limiter.keep_record('rate_limiter.costs', 'cost', 'id', 'tenant');
-- +goose StatementEnd

-- +goose Down
DROP TABLE rate_limiter.costs, rate_limiter.policies, rate_limiter.tenants, rate_limiter.tiers;
DROP FUNCTION rate_limiter.is_address, rate_limiter.is_endpoint, rate_limiter.canonical_endpoint;
