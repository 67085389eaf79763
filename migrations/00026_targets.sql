-- Policies for all requests or the anonymous ones, as the lists global and anonymous of the plugin's config; for one user of
-- a tenant; for a credential; and for an address or a network.
--
-- A program that does not read the new columns must leave these rows out. So they name neither a tier nor a tenant, which
-- such a program reports as a fault. The row of a user has to name its tenant; it has the tier '(user)' beside it, which is
-- a fault to such a program too. Without it the limit would be that of all users of the tenant.
--
-- The columns are added without a change of any row, so there is no version to take and nothing to record.

-- +goose Up
ALTER TABLE rate_limiter.policies
    ADD COLUMN "user"     text NOT NULL DEFAULT '', -- of the tenant
    ADD COLUMN credential text NOT NULL DEFAULT '',
    ADD COLUMN ip         text NOT NULL DEFAULT '', -- one address, or a network
    ADD COLUMN "for"      text NOT NULL DEFAULT '', -- all requests, or the anonymous ones
    ADD CONSTRAINT policies_user CHECK (octet_length("user") <= 128),
    ADD CONSTRAINT policies_credential CHECK (octet_length(credential) <= 128),
    ADD CONSTRAINT policies_ip CHECK (ip = '' OR (octet_length(ip) <= 64 AND rate_limiter.is_address(ip))),
    ADD CONSTRAINT policies_ip_all CHECK (ip NOT LIKE '%/0'),
    ADD CONSTRAINT policies_for CHECK ("for" IN ('', 'all', 'anonymous')),
    DROP CONSTRAINT policies_tier_or_tenant,
    ADD CONSTRAINT policies_target CHECK (
        CASE WHEN "user" <> '' THEN tenant <> '' AND tier = '(user)' AND credential = '' AND ip = '' AND "for" = ''
             ELSE (tier <> '')::int + (tenant <> '')::int + (credential <> '')::int + (ip <> '')::int
                + ("for" <> '')::int = 1 END),
    ADD CONSTRAINT policies_target_scope CHECK (
        CASE WHEN "user" <> '' THEN scope IN ('user', 'user+endpoint')
             WHEN credential <> '' THEN scope = 'credential'
             WHEN ip <> '' THEN scope IN ('ip', 'global')
             WHEN "for" <> '' THEN scope IN ('global', 'endpoint', 'ip')
             ELSE true END);

DROP INDEX rate_limiter.policies_one_per_match;
CREATE UNIQUE INDEX policies_one_per_match ON rate_limiter.policies
    (tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, slot, "user", credential, ip, "for");

-- The key of a candidate's change has the same columns. No program that lacks them reads it.
ALTER TABLE rate_limiter.candidate_policies
    ADD COLUMN "user"     text NOT NULL DEFAULT '',
    ADD COLUMN credential text NOT NULL DEFAULT '',
    ADD COLUMN ip         text NOT NULL DEFAULT '',
    ADD COLUMN "for"      text NOT NULL DEFAULT '',
    ADD CONSTRAINT candidate_policies_user CHECK (octet_length("user") <= 128),
    ADD CONSTRAINT candidate_policies_credential CHECK (octet_length(credential) <= 128),
    ADD CONSTRAINT candidate_policies_ip CHECK (ip = '' OR (octet_length(ip) <= 64 AND rate_limiter.is_address(ip))),
    ADD CONSTRAINT candidate_policies_for CHECK ("for" IN ('', 'all', 'anonymous')),
    DROP CONSTRAINT candidate_policies_tier_or_tenant,
    ADD CONSTRAINT candidate_policies_target CHECK (("user" = '' OR tenant <> '')
        AND (tier <> '')::int + (tenant <> '')::int + (credential <> '')::int + (ip <> '')::int + ("for" <> '')::int = 1),
    ADD CONSTRAINT candidate_policies_body_target CHECK (body IS NULL
        OR (coalesce(body ->> 'user', ''), coalesce(body ->> 'credential', ''), coalesce(body ->> 'ip', ''),
            coalesce(body ->> 'for', '')) = ("user", credential, ip, "for"));

DROP INDEX rate_limiter.candidate_policies_one_per_match;
CREATE UNIQUE INDEX candidate_policies_one_per_match ON rate_limiter.candidate_policies
    (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential, ip, "for");

-- +goose Down
-- What the columns before cannot hold ends.
SET LOCAL rate_limiter.reason = 'migration 00026_targets was reverted';
DELETE FROM rate_limiter.policies WHERE "user" <> '' OR credential <> '' OR ip <> '' OR "for" <> '';

DROP INDEX rate_limiter.policies_one_per_match;
CREATE UNIQUE INDEX policies_one_per_match ON rate_limiter.policies
    (tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, slot);
ALTER TABLE rate_limiter.policies
    DROP CONSTRAINT policies_target,
    DROP CONSTRAINT policies_target_scope,
    DROP COLUMN "user",
    DROP COLUMN credential,
    DROP COLUMN ip,
    DROP COLUMN "for", -- with their constraints
    ADD CONSTRAINT policies_tier_or_tenant CHECK ((tier = '') <> (tenant = ''));

-- An ended candidate keeps its changes; those that the columns before cannot hold go with their candidate's triggers off.
ALTER TABLE rate_limiter.candidate_policies DISABLE TRIGGER candidate_policies_open;
DELETE FROM rate_limiter.candidate_policies WHERE "user" <> '' OR credential <> '' OR ip <> '' OR "for" <> '';
ALTER TABLE rate_limiter.candidate_policies ENABLE TRIGGER candidate_policies_open;
DROP INDEX rate_limiter.candidate_policies_one_per_match;
CREATE UNIQUE INDEX candidate_policies_one_per_match ON rate_limiter.candidate_policies
    (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace);
ALTER TABLE rate_limiter.candidate_policies
    DROP CONSTRAINT candidate_policies_target,
    DROP CONSTRAINT candidate_policies_body_target,
    DROP COLUMN "user",
    DROP COLUMN credential,
    DROP COLUMN ip,
    DROP COLUMN "for",
    ADD CONSTRAINT candidate_policies_tier_or_tenant CHECK ((tier = '') <> (tenant = ''));
