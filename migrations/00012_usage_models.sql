-- Usage by model: what tenants' calls of models used on each day of UTC (docs/usage.md#by-model). And the unit of a
-- policy, so that exports can say dollars.

-- +goose Up
-- Kept for 3 years. What comes after its day was closed counts on the day it comes, as in usage_days.
CREATE TABLE rate_limiter.usage_models (
    calls             bigint  NOT NULL,
    prompt_tokens     bigint  NOT NULL,
    completion_tokens bigint  NOT NULL,
    micro_usd         bigint  NOT NULL, -- the price, in millionths of a US dollar
    day               date    NOT NULL,
    tenant            integer NOT NULL, -- of usage_names
    model             text    COLLATE "C" NOT NULL CONSTRAINT usage_models_model CHECK (octet_length(model) <= 1024),
    PRIMARY KEY (tenant, day, model)
);
CREATE INDEX usage_models_day ON rate_limiter.usage_models (day);

ALTER TABLE rate_limiter.usage_names
    ADD unit text NOT NULL DEFAULT '' -- of a policy, as it was counted last: usd; '': tokens
    CONSTRAINT usage_names_unit CHECK (unit IN ('', 'usd'));

-- +goose Down
DROP TABLE rate_limiter.usage_models;
ALTER TABLE rate_limiter.usage_names DROP unit;
