-- Candidates: changes to the active policies that are tried beside these, until one step promotes all of them.
-- docs/rollout.md describes them.
--
-- A candidate is a difference and not a copy: the policies that it puts, and those that it deletes. Nodes lay it over
-- the active policies. At most one candidate is open. No name is used twice: buckets and counts are kept under it.
--
-- Each change takes a version, as changes of policies do, and nodes find it in the table of changes. The kinds and keys
-- are candidate and its name, candidate_policy and an id, candidate_tenant and a tenant. Nodes of the version before
-- skip these kinds.
--
-- Rows of the slot candidate, which programs wrote before 00011, are no part of this.

-- +goose Up
CREATE TABLE rate_limiter.candidates (
    name         text        PRIMARY KEY,
    state        text        NOT NULL DEFAULT 'open',
    percent      integer     NOT NULL DEFAULT 0, -- of all tenants, for which the candidate is enforced
    base_version bigint      NOT NULL DEFAULT 0, -- of the policies that it changes; an update takes the current one
    base_audit   bigint      NOT NULL DEFAULT 0, -- the last audit row of that version
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL DEFAULT '',
    reason       text        NOT NULL DEFAULT '',
    ended_at     timestamptz, -- the last change of the state; null: it is open
    ended_by     text        NOT NULL DEFAULT '',
    end_reason   text        NOT NULL DEFAULT '',
    revision     bigint      NOT NULL DEFAULT 1,
    CONSTRAINT candidates_name CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$'),
    CONSTRAINT candidates_state CHECK (state IN ('open', 'promoted', 'rolled_back', 'dropped')),
    CONSTRAINT candidates_percent CHECK (percent BETWEEN 0 AND 100),
    CONSTRAINT candidates_ended_at CHECK ((state = 'open') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX candidates_one_open ON rate_limiter.candidates (state) WHERE state = 'open';

CREATE TABLE rate_limiter.candidate_policies (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    candidate text   NOT NULL REFERENCES rate_limiter.candidates,
    namespace text   NOT NULL DEFAULT 'default', -- to endpoint: the key of the policy
    name      text   NOT NULL,
    tier      text   NOT NULL DEFAULT '',
    tenant    text   NOT NULL DEFAULT '',
    endpoint  text   NOT NULL DEFAULT '',
    body      jsonb, -- the policy, as the REST API writes it, with its defaults; null: the active one is deleted
    was       jsonb, -- the active policy that the promotion replaced; null: there was none
    revision  bigint NOT NULL DEFAULT 1,
    CONSTRAINT candidate_policies_namespace CHECK (namespace ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT candidate_policies_name CHECK (name ~ '^[A-Za-z0-9_.-]{1,64}$'),
    CONSTRAINT candidate_policies_tier CHECK (octet_length(tier) <= 64),
    CONSTRAINT candidate_policies_tenant CHECK (octet_length(tenant) <= 128),
    CONSTRAINT candidate_policies_tier_or_tenant CHECK ((tier = '') <> (tenant = '')),
    CONSTRAINT candidate_policies_endpoint CHECK (rate_limiter.is_endpoint(endpoint)),
    CONSTRAINT candidate_policies_body CHECK (body IS NULL OR coalesce(
        jsonb_typeof(body) = 'object' AND octet_length(body::text) <= 32768
        AND (body ->> 'namespace', body ->> 'name', coalesce(body ->> 'tier', ''), coalesce(body ->> 'tenant', ''),
            coalesce(body ->> 'endpoint', '')) = (namespace, name, tier, tenant, endpoint),
        false))
);
CREATE UNIQUE INDEX candidate_policies_one_per_match ON rate_limiter.candidate_policies
    (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace);

-- The tenants for which the candidate is enforced, beside the percentage.
CREATE TABLE rate_limiter.candidate_tenants (
    candidate text   NOT NULL REFERENCES rate_limiter.candidates,
    tenant    text   NOT NULL,
    revision  bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (candidate, tenant),
    CONSTRAINT candidate_tenants_tenant CHECK (octet_length(tenant) BETWEEN 1 AND 128)
);

-- Fills in who has made or ended a candidate, when and why, and its base. Denies all changes of the state but these:
-- open, then promoted or dropped; promoted, then rolled back. A candidate that is not open changes in nothing else.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.keep_candidate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function keep_candidate is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.created_by := rate_limiter.actor();
        NEW.reason := coalesce(rate_limiter.reason(), NEW.reason);
        NEW.created_at := clock_timestamp();
    ELSIF NEW.state <> OLD.state
        AND (OLD.state, NEW.state) IN (('open', 'promoted'), ('open', 'dropped'), ('promoted', 'rolled_back')) THEN
        NEW.ended_at := clock_timestamp();
        NEW.ended_by := rate_limiter.actor();
        NEW.end_reason := coalesce(rate_limiter.reason(), '');
    ELSIF OLD.state <> 'open' OR NEW.state <> 'open' OR NEW.name <> OLD.name THEN
        RAISE EXCEPTION 'the candidate % is %', OLD.name, OLD.state USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'candidates', CONSTRAINT = 'candidates_ended',
            HINT = 'make another candidate';
    END IF;
    IF TG_OP = 'INSERT' OR NEW.base_version <> OLD.base_version THEN
        SELECT v.version, coalesce((SELECT max(a.id) FROM rate_limiter.audit a), 0)
        INTO STRICT NEW.base_version, NEW.base_audit FROM rate_limiter.version v;
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- Denies changes of the policies and tenants of a candidate that is not open.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.keep_candidate_open() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed text;
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function keep_candidate_open is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    changed := CASE TG_OP WHEN 'INSERT' THEN NEW.candidate ELSE OLD.candidate END;
    IF EXISTS (SELECT FROM rate_limiter.candidates c WHERE c.name = changed AND c.state <> 'open')
        OR TG_OP = 'UPDATE' AND NEW.candidate <> OLD.candidate THEN
        RAISE EXCEPTION 'the candidate % is not open', changed USING
            ERRCODE = 'check_violation', SCHEMA = 'rate_limiter', TABLE = 'candidates', CONSTRAINT = 'candidates_ended',
            HINT = 'make another candidate';
    END IF;
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
-- +goose StatementEnd

CALL rate_limiter.keep_record('rate_limiter.candidates', 'candidate', 'name', 'tenant');
CALL rate_limiter.keep_record('rate_limiter.candidate_policies', 'candidate_policy', 'id', 'tenant');
CALL rate_limiter.keep_record('rate_limiter.candidate_tenants', 'candidate_tenant', 'tenant', 'tenant');
CREATE TRIGGER candidates_kept BEFORE INSERT OR UPDATE ON rate_limiter.candidates
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate();
CREATE TRIGGER candidates_stay BEFORE DELETE ON rate_limiter.candidates
    EXECUTE FUNCTION rate_limiter.refuse('drop the candidate: its row stays, so that no other one takes its name');
CREATE TRIGGER candidate_policies_open BEFORE INSERT OR UPDATE OR DELETE ON rate_limiter.candidate_policies
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();
CREATE TRIGGER candidate_tenants_open BEFORE INSERT OR UPDATE OR DELETE ON rate_limiter.candidate_tenants
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.keep_candidate_open();

-- +goose Down
DROP TABLE rate_limiter.candidate_tenants, rate_limiter.candidate_policies, rate_limiter.candidates;
DROP FUNCTION rate_limiter.keep_candidate, rate_limiter.keep_candidate_open;
