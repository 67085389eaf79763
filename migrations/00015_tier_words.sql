-- What tenants read of a tier: its name, and its price, in words. Empty: those of the config, if it has any.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE rate_limiter.tiers
    ADD title text NOT NULL DEFAULT '' CONSTRAINT tiers_title CHECK (octet_length(title) <= 64),
    ADD price_text text NOT NULL DEFAULT '' CONSTRAINT tiers_price_text CHECK (octet_length(price_text) <= 256);
-- +goose StatementEnd

-- +goose Down
ALTER TABLE rate_limiter.tiers DROP title, DROP price_text;
