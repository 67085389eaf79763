-- What a stolen login of a node can stop or fill.
--
-- A write sends no notification. Every role may fill Postgres's queue of notifications, and a full queue stops each
-- transaction that sends one: Postgres denies its commit, which no function can catch. Nodes poll the version.
--
-- The reports of nodes are bounded: the faults of each, and their number.

-- +goose Up
-- The version of this transaction. The first call takes it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.take_version() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken bigint;
BEGIN
    SELECT v.version INTO taken FROM rate_limiter.version v WHERE v.transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        UPDATE rate_limiter.version v
        SET version = v.version + 1, transaction = pg_current_xact_id(), at = clock_timestamp()
        RETURNING v.version INTO STRICT taken;
    END IF;
    RETURN taken;
END
$$;
-- +goose StatementEnd

ALTER TABLE rate_limiter.nodes
    ADD CONSTRAINT nodes_faults_size CHECK (octet_length(faults::text) <= 65536) NOT VALID; -- also locks the table
DELETE FROM rate_limiter.nodes WHERE octet_length(faults::text) > 65536;

-- Drops all reports but the newest 2,000. Runs once for each new node, with its rights: it may delete reports anyway.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.drop_old_reports() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM rate_limiter.nodes n WHERE (n.reported_at, n.node) < (
        SELECT o.reported_at, o.node FROM rate_limiter.nodes o ORDER BY o.reported_at DESC, o.node DESC OFFSET 1999 LIMIT 1);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER nodes_bound AFTER INSERT ON rate_limiter.nodes
    FOR EACH ROW EXECUTE FUNCTION rate_limiter.drop_old_reports();

-- +goose Down
DROP TRIGGER nodes_bound ON rate_limiter.nodes;
DROP FUNCTION rate_limiter.drop_old_reports;
ALTER TABLE rate_limiter.nodes DROP CONSTRAINT nodes_faults_size;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION rate_limiter.take_version() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken bigint;
BEGIN
    SELECT v.version INTO taken FROM rate_limiter.version v WHERE v.transaction = pg_current_xact_id();
    IF NOT FOUND THEN
        UPDATE rate_limiter.version v
        SET version = v.version + 1, transaction = pg_current_xact_id(), at = clock_timestamp()
        RETURNING v.version INTO STRICT taken;
        PERFORM pg_notify('rate_limiter_changes', taken::text);
    END IF;
    RETURN taken;
END
$$;
-- +goose StatementEnd
