-- Usage history. A node reports what it has counted as batches, by report_usage. One leader (ratelimit serve, or
-- ratelimit tidy) unpacks them into minutes, and sums these up to hours and days. docs/usage.md describes it.
--
-- A batch is added once: the transaction that adds its rows also sets last_seq of its source and deletes the batch.
-- The leader's transactions lock the row of usage_state first, so even two leaders would work one after the other.
--
-- All instants are the database's: a node sends an age instead of a time. Days, months and years are those of UTC.

-- +goose Up
-- Batches that wait for the leader.
CREATE TABLE rate_limiter.usage_batches (
    node        text        NOT NULL,
    epoch       text        NOT NULL, -- 64 random bits of the node's process, in hex
    seq         bigint      NOT NULL, -- counts the batches of the epoch, from 1
    login       text        NOT NULL, -- the database user that reported it
    began       timestamptz NOT NULL, -- when the batch began
    received_at timestamptz NOT NULL,
    payload     bytea       NOT NULL,
    fault       text        NOT NULL DEFAULT '', -- why the leader has set it aside; '': it has not
    PRIMARY KEY (node, epoch, seq)
);
CREATE INDEX usage_batches_began ON rate_limiter.usage_batches (began);

-- What waits, by node: report_usage checks its bounds here.
CREATE TABLE rate_limiter.usage_nodes (
    login   text        NOT NULL,
    node    text        NOT NULL,
    batches bigint      NOT NULL,
    bytes   bigint      NOT NULL,
    seen_at timestamptz NOT NULL, -- its last batch
    PRIMARY KEY (login, node)
);

-- How far the leader has unpacked each source: a process of a node.
CREATE TABLE rate_limiter.usage_sources (
    node      text        NOT NULL,
    epoch     text        NOT NULL,
    login     text        NOT NULL,
    last_seq  bigint      NOT NULL, -- batches up to this one are added, or given up
    gaps      bigint      NOT NULL, -- batches that have not come within the time to wait for them
    too_late  bigint      NOT NULL, -- batches from before the oldest minute that is kept
    faulty    bigint      NOT NULL, -- batches that were set aside
    watermark timestamptz NOT NULL, -- all that the process counted before this instant is added
    seen_at   timestamptz NOT NULL, -- its last batch was received
    PRIMARY KEY (node, epoch)
);
CREATE INDEX usage_sources_seen ON rate_limiter.usage_sources (seen_at);

-- How far minutes are summed up. Rows of earlier times that come later are added to the sums directly.
CREATE TABLE rate_limiter.usage_state (
    one         boolean     PRIMARY KEY DEFAULT true CONSTRAINT usage_state_one_row CHECK (one),
    hours_until timestamptz NOT NULL, -- all earlier minutes are in usage_hours
    days_until  timestamptz NOT NULL, -- all earlier hours are in usage_days; these days are closed
    CONSTRAINT usage_state_order CHECK (days_until <= hours_until)
);
INSERT INTO rate_limiter.usage_state (hours_until, days_until)
SELECT at, at FROM date_trunc('day', clock_timestamp() - interval '2 days', 'UTC') at;

-- Names of tenants, endpoints and policies. Rows are never deleted.
CREATE TABLE rate_limiter.usage_names (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text    NOT NULL UNIQUE CONSTRAINT usage_names_name CHECK (octet_length(name) <= 1024)
);

-- Partitioned by day, kept for 2 days. Columns are ordered by size, without padding.
CREATE TABLE rate_limiter.usage_minutes (
    at            timestamptz NOT NULL,
    admitted      bigint      NOT NULL,
    soft          bigint      NOT NULL, -- admitted above a soft threshold
    denied        bigint      NOT NULL,
    shadow_denied bigint      NOT NULL,
    cost          bigint      NOT NULL, -- tokens, also of settlements, which may return more than was charged
    remaining_min bigint,               -- the lowest; null: none was reported
    tenant        integer     NOT NULL,
    endpoint      integer     NOT NULL,
    policy        integer     NOT NULL, -- the name '' counts the requests themselves
    PRIMARY KEY (tenant, at, endpoint, policy)
) PARTITION BY RANGE (at);
CREATE INDEX usage_minutes_at ON rate_limiter.usage_minutes USING brin (at) WITH (pages_per_range = 32);

-- Partitioned by month, kept for 60 days.
CREATE TABLE rate_limiter.usage_hours (LIKE rate_limiter.usage_minutes, PRIMARY KEY (tenant, at, endpoint, policy))
    PARTITION BY RANGE (at);
CREATE INDEX usage_hours_at ON rate_limiter.usage_hours USING brin (at) WITH (pages_per_range = 32);

-- Partitioned by year, kept for 3 years. What comes after its day was closed counts on the day it comes, in rows of
-- their own (late), so a closed day does not change.
CREATE TABLE rate_limiter.usage_days (
    LIKE rate_limiter.usage_minutes,
    late boolean NOT NULL,
    PRIMARY KEY (tenant, at, endpoint, policy, late)
) PARTITION BY RANGE (at);
CREATE INDEX usage_days_at ON rate_limiter.usage_days USING brin (at) WITH (pages_per_range = 32);

-- Stores a batch of a node for the leader. Returns false if it waits already: the node has sent it twice.
--
-- Nodes may execute this and nothing else of usage. So what a login can store is bounded here: the size of a batch, the
-- batches and bytes that wait for each node and for the login, and its nodes. The SQLSTATE 22023 reports a batch that
-- will never be stored, and 53400 a bound that the leader's work lifts.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.report_usage(node text, epoch text, seq bigint, age interval, payload bytea)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    size   bigint := octet_length(payload);
    at     timestamptz := clock_timestamp();
    own    rate_limiter.usage_nodes;
    nodes  bigint;
    bytes  numeric;
    stored bigint;
BEGIN
    IF (octet_length(report_usage.node) BETWEEN 1 AND 256) IS NOT TRUE THEN
        RAISE EXCEPTION 'the node must have a name of 1 to 256 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (report_usage.epoch ~ '^[0-9a-f]{16}$') IS NOT TRUE THEN
        RAISE EXCEPTION 'the epoch must be 16 hexadecimal digits' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (report_usage.seq >= 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'seq must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (size BETWEEN 1 AND 1048576) IS NOT TRUE THEN
        RAISE EXCEPTION 'the payload must have 1 to 1048576 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF report_usage.age IS NULL THEN
        RAISE EXCEPTION 'the age must be given' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO own FROM rate_limiter.usage_nodes n WHERE n.login = session_user AND n.node = report_usage.node;
    SELECT count(*), coalesce(sum(n.bytes), 0) INTO nodes, bytes
    FROM rate_limiter.usage_nodes n WHERE n.login = session_user;
    IF own.batches >= 40000 OR own.bytes + size > 536870912 OR bytes + size > 8589934592
        OR own.node IS NULL AND nodes >= 2000 THEN
        RAISE EXCEPTION 'too much usage of % waits to be unpacked', CASE
            WHEN own.node IS NULL AND nodes >= 2000 THEN 'too many nodes'
            WHEN bytes + size > 8589934592 THEN 'all nodes'
            ELSE 'this node' END
            USING ERRCODE = 'configuration_limit_exceeded',
            HINT = 'ratelimit serve or ratelimit tidy unpacks it, with the rights of the role keeper';
    END IF;
    INSERT INTO rate_limiter.usage_batches (node, epoch, seq, login, began, received_at, payload)
    VALUES (report_usage.node, report_usage.epoch, report_usage.seq, session_user,
        at - least(greatest(age, interval '0'), interval '30 days'), at, report_usage.payload)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS stored = ROW_COUNT;
    IF stored = 0 THEN
        RETURN false;
    END IF;
    INSERT INTO rate_limiter.usage_nodes AS n (login, node, batches, bytes, seen_at)
    VALUES (session_user, report_usage.node, 1, size, at)
    ON CONFLICT (login, node) DO UPDATE
    SET batches = n.batches + 1, bytes = n.bytes + excluded.bytes, seen_at = excluded.seen_at;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Makes the partitions of today and of what comes next, and drops those that are past their retention. It drops no
-- minutes that are not in the hours, and no hours that are not in the days. The retention is fixed here, so the role that
-- executes it cannot drop more. New partitions are attached, which lets readers go on; to drop one, it waits for them.
-- +goose StatementBegin
CREATE FUNCTION rate_limiter.keep_usage_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    today timestamp := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC');
    state rate_limiter.usage_state;
    level record;
    first timestamp;
    part  record;
BEGIN
    SELECT * INTO STRICT state FROM rate_limiter.usage_state FOR UPDATE;
    FOR level IN
        SELECT * FROM (VALUES
            ('usage_minutes', 'day', interval '1 day', interval '2 days', 'YYYYMMDD', state.hours_until),
            ('usage_hours', 'month', interval '1 month', interval '60 days', 'YYYYMM', state.days_until),
            ('usage_days', 'year', interval '1 year', interval '3 years', 'YYYY', 'infinity')
        ) levels (name, unit, span, kept, pattern, until)
    LOOP
        first := today - interval '2 days';
        IF level.name <> 'usage_minutes' THEN -- what is still to be summed up goes there
            first := least(first, state.days_until AT TIME ZONE 'UTC');
        END IF;
        FOR part IN
            SELECT level.name || '_' || to_char(at, level.pattern) AS name, at AS begins, at + level.span AS ends
            FROM generate_series(date_trunc(level.unit, first), today + 2 * level.span, level.span) at
        LOOP
            CONTINUE WHEN to_regclass('rate_limiter.' || part.name) IS NOT NULL;
            EXECUTE format('CREATE TABLE rate_limiter.%I (LIKE rate_limiter.%I INCLUDING ALL)', part.name, level.name);
            EXECUTE format('ALTER TABLE rate_limiter.%I ATTACH PARTITION rate_limiter.%I FOR VALUES FROM (%L) TO (%L)',
                level.name, part.name, to_char(part.begins, 'YYYY-MM-DD "00:00:00+00"'),
                to_char(part.ends, 'YYYY-MM-DD "00:00:00+00"'));
        END LOOP;
        FOR part IN
            SELECT c.relname AS name, to_date(substr(c.relname, length(level.name) + 2), level.pattern) + level.span AS ends
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = ('rate_limiter.' || level.name)::regclass AND c.relname ~ ('^' || level.name || '_[0-9]+$')
        LOOP
            CONTINUE WHEN part.ends > today - level.kept OR part.ends AT TIME ZONE 'UTC' > level.until;
            EXECUTE format('DROP TABLE rate_limiter.%I', part.name);
        END LOOP;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.report_usage, rate_limiter.keep_usage_partitions;
DROP TABLE rate_limiter.usage_batches, rate_limiter.usage_nodes, rate_limiter.usage_sources, rate_limiter.usage_state,
    rate_limiter.usage_names, rate_limiter.usage_minutes, rate_limiter.usage_hours, rate_limiter.usage_days;
