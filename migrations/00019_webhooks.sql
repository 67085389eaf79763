-- Webhooks: who subscribes to which events, the secrets that sign them, and what is to be delivered. docs/webhooks.md
-- describes them. The leader of ratelimit serve sends.

-- +goose Up
CREATE TABLE rate_limiter.webhooks (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org        text        NOT NULL DEFAULT '', -- only events of this tenant, as it may read them; '': all events
    url        text        NOT NULL,
    types      text[]      NOT NULL DEFAULT '{}', -- of events; empty: all
    enabled    boolean     NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text        NOT NULL,

    -- What the sender keeps.
    disabled_for  text        NOT NULL DEFAULT '', -- why the sender has disabled it; '': it has not
    failing_since timestamptz, -- all tries since then have failed; null: the last one has not
    failures      bigint      NOT NULL DEFAULT 0,  -- tries since then
    last_error    text        NOT NULL DEFAULT '', -- of the last try; '': it succeeded, or there was none
    delivered_at  timestamptz, -- the last success
    hold_until    timestamptz, -- the receiver wants nothing before
    dropped       bigint      NOT NULL DEFAULT 0,  -- events that did not fit the queue, or were given up
    CONSTRAINT webhooks_org CHECK (octet_length(org) <= 128),
    CONSTRAINT webhooks_url CHECK (octet_length(url) <= 2048 AND url ~ '^https?://[^[:space:][:cntrl:]]+$'),
    CONSTRAINT webhooks_types CHECK (cardinality(types) <= 16),
    CONSTRAINT webhooks_created_by CHECK (created_by ~ '\S' AND octet_length(created_by) <= 256),
    CONSTRAINT webhooks_disabled_for CHECK (octet_length(disabled_for) <= 1024 AND (NOT enabled OR disabled_for = '')),
    CONSTRAINT webhooks_last_error CHECK (octet_length(last_error) <= 1024)
);
CREATE INDEX webhooks_org_id ON rate_limiter.webhooks (org, id);

-- Only the sender reads secrets. Nodes read nothing of webhooks, so no snapshot of theirs has any.
CREATE TABLE rate_limiter.webhook_secrets (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook     bigint      NOT NULL REFERENCES rate_limiter.webhooks ON DELETE CASCADE,
    secret      bytea       NOT NULL,
    signs_until timestamptz, -- null: it is the current one
    CONSTRAINT webhook_secrets_secret CHECK (octet_length(secret) BETWEEN 24 AND 64)
);
CREATE INDEX webhook_secrets_webhook ON rate_limiter.webhook_secrets (webhook);

CREATE TABLE rate_limiter.webhook_deliveries (
    id         text        PRIMARY KEY, -- the header webhook-id, the same for all tries
    webhook    bigint      NOT NULL REFERENCES rate_limiter.webhooks ON DELETE CASCADE,
    events     integer     NOT NULL,
    body       text        NOT NULL, -- '' when it has ended
    state      text        NOT NULL DEFAULT 'waiting', -- delivered, failed: it was given up
    created_at timestamptz NOT NULL,
    due_at     timestamptz NOT NULL, -- the next try
    tries      integer     NOT NULL DEFAULT 0,
    status     integer     NOT NULL DEFAULT 0, -- of the last answer; 0: there was none
    error      text        NOT NULL DEFAULT '', -- of the last try
    tried_at   timestamptz, -- the last try
    CONSTRAINT webhook_deliveries_id CHECK (octet_length(id) BETWEEN 1 AND 64),
    CONSTRAINT webhook_deliveries_body CHECK (octet_length(body) <= 1048576),
    CONSTRAINT webhook_deliveries_state CHECK (state IN ('waiting', 'delivered', 'failed')),
    CONSTRAINT webhook_deliveries_error CHECK (octet_length(error) <= 1024)
);
CREATE INDEX webhook_deliveries_due ON rate_limiter.webhook_deliveries (webhook, due_at) WHERE state = 'waiting';
CREATE INDEX webhook_deliveries_created ON rate_limiter.webhook_deliveries (created_at);
CREATE INDEX webhook_deliveries_webhook ON rate_limiter.webhook_deliveries (webhook, created_at);

-- Records what people change, and that the sender has disabled a webhook. Argument: the kind.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.record_webhook() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of rate_limiter.webhooks;
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function record_webhook is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    of := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant, before, after)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', lower(TG_OP), of.id, of.org,
        CASE WHEN TG_OP <> 'INSERT' THEN jsonb_build_object('url', OLD.url, 'types', OLD.types, 'enabled', OLD.enabled) END,
        CASE WHEN TG_OP <> 'DELETE' THEN jsonb_build_object('url', NEW.url, 'types', NEW.types, 'enabled', NEW.enabled) END
    FROM rate_limiter.version v;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER webhooks_recorded AFTER INSERT OR DELETE ON rate_limiter.webhooks
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook();
CREATE TRIGGER webhooks_updated AFTER UPDATE ON rate_limiter.webhooks
    FOR EACH ROW WHEN ((OLD.url, OLD.types, OLD.enabled) IS DISTINCT FROM (NEW.url, NEW.types, NEW.enabled))
    EXECUTE FUNCTION rate_limiter.record_webhook();

-- A new secret is a rotation, also where its webhook is new.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.record_webhook_secret() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_SCHEMA <> 'rate_limiter' THEN
        RAISE EXCEPTION 'the trigger function record_webhook_secret is for tables of rate_limiter, not for %.%',
            TG_TABLE_SCHEMA, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO rate_limiter.audit (version, actor, reason, kind, operation, key, tenant)
    SELECT v.version, rate_limiter.actor(), coalesce(rate_limiter.reason(), ''), 'webhook', 'secret', w.id, w.org
    FROM rate_limiter.version v, rate_limiter.webhooks w WHERE w.id = NEW.webhook;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER webhook_secrets_recorded AFTER INSERT ON rate_limiter.webhook_secrets
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.record_webhook_secret();

-- +goose Down
DROP TABLE rate_limiter.webhook_deliveries, rate_limiter.webhook_secrets, rate_limiter.webhooks;
DROP FUNCTION rate_limiter.record_webhook, rate_limiter.record_webhook_secret;
