-- Usage history (docs/usage.md). A node reports what it has counted as batches, by report_usage. One leader (ratelimit
-- serve, or ratelimit tidy) unpacks them into minutes, and sums these up to hours and days. It also looks for quotas
-- that run out.
--
-- A batch is added once: the transaction that adds its rows also sets last_seq of its source and deletes the batch. The
-- leader's transactions lock the row of usage_state first, so even two leaders would work one after the other.
--
-- All instants are the database's: a node sends an age instead of a time. Days, months and years are those of UTC.

-- +goose Up
-- +goose StatementBegin
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

-- How far minutes are summed up. Rows of earlier times that come later are added to the sums directly. And what the
-- leader has still to look at for notices: the transaction that adds the rows sets changed_since, for a later leader.
CREATE TABLE rate_limiter.usage_state (
    one           boolean     PRIMARY KEY DEFAULT true CONSTRAINT usage_state_one_row CHECK (one),
    hours_until   timestamptz NOT NULL, -- all earlier minutes are in usage_hours
    days_until    timestamptz NOT NULL, -- all earlier hours are in usage_days; these days are closed
    changed_since timestamptz, -- the first minute with rows that are not looked at; null: none
    checked_at    timestamptz, -- all rows were looked at; null: never
    CONSTRAINT usage_state_order CHECK (days_until <= hours_until)
);
INSERT INTO rate_limiter.usage_state (hours_until, days_until)
SELECT at, at FROM date_trunc('day', clock_timestamp() - interval '2 days', 'UTC') at;

-- Names of tenants, endpoints and policies. Rows are never deleted. Policies of one name are found as a range:
-- daily/default/enterprise is the one of a tier, daily/#12 a row's.
CREATE TABLE rate_limiter.usage_names (
    id   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text    COLLATE "C" NOT NULL UNIQUE CONSTRAINT usage_names_name CHECK (octet_length(name) <= 1024)
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

-- The tiers that nodes decided by, and where they found them: pages, notices and decisions for callers that are not
-- Kong read here which plan a tenant without a row is on. Nodes report it with their usage.
CREATE TABLE rate_limiter.tenant_tiers (
    since     timestamptz NOT NULL, -- no later report lacked it for ten minutes
    seen_at   timestamptz NOT NULL, -- the end of the batch that reported it last
    stored_at timestamptz NOT NULL, -- readers fetch what is newer than what they have
    tenant    integer     NOT NULL, -- of usage_names
    namespace text        NOT NULL, -- of the config that decided
    tier      text        NOT NULL,
    source    text        NOT NULL, -- row, default, or as a config names it: consumer.tag.tier
    PRIMARY KEY (tenant, namespace, tier, source)
);
CREATE INDEX tenant_tiers_stored ON rate_limiter.tenant_tiers (stored_at);

-- Quota notices: a tenant has used 50, 80 or 100 % of a quota. The leader of ratelimit serve writes them beside the
-- events that report them.
CREATE TABLE rate_limiter.quota_notices (
    tenant       text        NOT NULL,
    policy       text        NOT NULL,
    endpoint     text        NOT NULL, -- of the bucket; '': all endpoints
    window_start timestamptz NOT NULL,
    threshold    smallint    NOT NULL CONSTRAINT quota_notices_threshold CHECK (threshold IN (50, 80, 100)),
    window_end   timestamptz NOT NULL,
    "limit"      bigint      NOT NULL, -- tokens, as in force at the time of the notice
    used         bigint      NOT NULL, -- tokens, at that time
    exhausted_at timestamptz,          -- at the rate of that time; null: not before the window's end
    late         boolean     NOT NULL, -- the threshold may have been reached long before the notice
    noticed_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant, policy, endpoint, window_start, threshold)
);
CREATE INDEX quota_notices_window_end ON rate_limiter.quota_notices (window_end);
CREATE INDEX quota_notices_noticed_at ON rate_limiter.quota_notices (noticed_at);

-- Stores a batch of a node for the leader. Returns false if it waits already: the node has sent it twice. Bounded are
-- the size of a batch, the batches and bytes that wait for each node and for the login, and its nodes.
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
    PERFORM rate_limiter.check_value(octet_length(report_usage.node) BETWEEN 1 AND 256,
            'the node must have a name of 1 to 256 bytes'),
        rate_limiter.check_value(report_usage.epoch ~ '^[0-9a-f]{16}$', 'the epoch must be 16 hexadecimal digits'),
        rate_limiter.check_value(report_usage.seq >= 1, 'seq must be at least 1'),
        rate_limiter.check_value(size BETWEEN 1 AND 1048576, 'the payload must have 1 to 1048576 bytes'),
        rate_limiter.check_value(report_usage.age IS NOT NULL, 'the age must be given');
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
-- Returns how long ago Postgres received the oldest batch of all nodes that waits to be unpacked; 0: none waits.
-- Batches that were set aside do not wait. So an alert can report that no process unpacks, also where no ratelimit
-- serve runs.
CREATE FUNCTION rate_limiter.usage_backlog() RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((
        SELECT clock_timestamp() - b.received_at FROM rate_limiter.usage_batches b WHERE b.fault = ''
        ORDER BY b.began LIMIT 1
    ), '0')
$$;
-- Stores the minutes from first until another time anew, ordered by tenant, and returns how many rows these are. The
-- leader adds rows minute by minute, so those of a tenant are on as many pages as there are minutes. It calls this for
-- each hour that is summed up. No row changes, so the role that executes it needs no right to delete.
CREATE FUNCTION rate_limiter.order_usage_minutes(first timestamptz, until timestamptz) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (
        DELETE FROM rate_limiter.usage_minutes m WHERE m.at >= $1 AND m.at < $2 RETURNING m.*
    ), stored AS (
        INSERT INTO rate_limiter.usage_minutes SELECT g.* FROM gone g ORDER BY g.tenant, g.at RETURNING 1
    ) SELECT count(*) FROM stored
$$;
-- Makes the partitions of today and of what comes next, and drops those that are past their retention. It drops no
-- minutes that are not in the hours, and no hours that are not in the days. The retention is fixed here, so the role
-- that executes it cannot drop more. New partitions are attached, which lets readers go on; to drop one, it waits for
-- them.
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
            SELECT c.relname AS name,
                to_date(substr(c.relname, length(level.name) + 2), level.pattern) + level.span AS ends
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = ('rate_limiter.' || level.name)::regclass
                AND c.relname ~ ('^' || level.name || '_[0-9]+$')
        LOOP
            CONTINUE WHEN part.ends > today - level.kept OR part.ends AT TIME ZONE 'UTC' > level.until;
            EXECUTE format('DROP TABLE rate_limiter.%I', part.name);
        END LOOP;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION rate_limiter.report_usage, rate_limiter.usage_backlog, rate_limiter.order_usage_minutes,
    rate_limiter.keep_usage_partitions;
DROP TABLE rate_limiter.usage_batches, rate_limiter.usage_nodes, rate_limiter.usage_sources, rate_limiter.usage_state,
    rate_limiter.usage_names, rate_limiter.usage_minutes, rate_limiter.usage_hours, rate_limiter.usage_days,
    rate_limiter.tenant_tiers, rate_limiter.quota_notices;
