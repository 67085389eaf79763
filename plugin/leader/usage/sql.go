package usage

import "fmt"

// maxSum bounds each number of a row, as in a batch, so that no sum overflows a column.
const maxSum = 1 << 53

// selectHeads lists the first batches of each source. It finds the sources in the index one by one, so it does not read
// all batches that wait. $1 bounds the batches of a source.
const selectHeads = `WITH RECURSIVE sources AS (
		(SELECT node, epoch FROM rate_limiter.usage_batches ORDER BY node, epoch LIMIT 1)
		UNION ALL SELECT n.node, n.epoch FROM sources s CROSS JOIN LATERAL (
			SELECT node, epoch FROM rate_limiter.usage_batches b
			WHERE (b.node, b.epoch) > (s.node, s.epoch) ORDER BY node, epoch LIMIT 1) n
	) SELECT s.node, s.epoch, b.seq, b.login, b.began, b.received_at, coalesce(u.last_seq, 0)
	FROM sources s LEFT JOIN rate_limiter.usage_sources u USING (node, epoch)
	CROSS JOIN LATERAL (
		SELECT seq, login, began, received_at FROM rate_limiter.usage_batches b
		WHERE b.node = s.node AND b.epoch = s.epoch AND fault = '' ORDER BY seq LIMIT $1) b
	ORDER BY s.node, s.epoch, b.seq`

// selectPayloads reads batches, each with its place in the arrays.
const selectPayloads = `SELECT k.place::bigint, payload
	FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY k (node, epoch, seq, place)
	JOIN rate_limiter.usage_batches USING (node, epoch, seq) ORDER BY k.place`

const markFaulty = `UPDATE rate_limiter.usage_batches SET fault = $4 WHERE node = $1 AND epoch = $2 AND seq = $3`

const deleteBatches = `DELETE FROM rate_limiter.usage_batches b
	USING unnest($1::text[], $2::text[], $3::bigint[]) k (node, epoch, seq)
	WHERE b.node = k.node AND b.epoch = k.epoch AND b.seq = k.seq`

// lockNodes and countWaiting count what waits of each node. The count is exact, because the row of a node is locked by
// each report until it commits. A row that is locked now is left for the next count: the leader never waits for a node.
const (
	lockNodes = `SELECT login, node FROM rate_limiter.usage_nodes WHERE batches > 0 FOR UPDATE SKIP LOCKED`

	countWaiting = `UPDATE rate_limiter.usage_nodes n SET batches = w.batches, bytes = w.bytes
		FROM (SELECT k.login, k.node, count(b.seq) AS batches, coalesce(sum(octet_length(b.payload)), 0) AS bytes
			FROM unnest($1::text[], $2::text[]) k (login, node) LEFT JOIN rate_limiter.usage_batches b USING (login, node)
			GROUP BY 1, 2) w
		WHERE n.login = w.login AND n.node = w.node AND (n.batches, n.bytes) <> (w.batches, w.bytes)`
)

const upsertSources = `INSERT INTO rate_limiter.usage_sources AS s
		(node, epoch, login, last_seq, gaps, too_late, faulty, watermark, seen_at)
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
		$8::timestamptz[], $9::timestamptz[])
	ON CONFLICT (node, epoch) DO UPDATE SET login = excluded.login, last_seq = excluded.last_seq,
		gaps = s.gaps + excluded.gaps, too_late = s.too_late + excluded.too_late, faulty = s.faulty + excluded.faulty,
		watermark = greatest(s.watermark, excluded.watermark), seen_at = greatest(s.seen_at, excluded.seen_at)`

// maxNames bounds the names in the database, which are never deleted. Further ones count as otherName.
const (
	maxNames  = 2_000_000
	otherName = "(other)"
)

// insertNames adds otherName, and the names of $1 that are missing, at most up to $2 in all.
const insertNames = `INSERT INTO rate_limiter.usage_names (name)
	SELECT name FROM (
		SELECT name, row_number() OVER (ORDER BY name <> '` + otherName + `') AS number
		FROM (SELECT unnest($1::text[]) UNION SELECT '` + otherName + `') given (name)
		WHERE NOT EXISTS (SELECT FROM rate_limiter.usage_names n WHERE n.name = given.name)
	) missing
	WHERE name = '` + otherName + `' OR number <= $2 - (SELECT coalesce(max(id), 0) FROM rate_limiter.usage_names)`

// addRows adds rows to the minutes, those before $12 also to the hours, and those before $13 also to the day of $14,
// which is not closed. It records the units of policies, and the first minute whose rows have changed since
// Options.Check has looked, and returns how many rows of minutes have changed.
var addRows = `WITH given AS MATERIALIZED (
		SELECT r.at, coalesce(t.id, other.id) AS tenant,
			coalesce(e.id, other.id) AS endpoint, coalesce(p.id, other.id) AS policy, admitted, soft, denied, shadow_denied,
			cost, nullif(remaining, -1) AS remaining_min, r.unit
		FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
				$8::bigint[], $9::bigint[], $10::bigint[], $11::text[])
			r (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost, remaining, unit)
		JOIN rate_limiter.usage_names other ON other.name = '` + otherName + `'
		LEFT JOIN rate_limiter.usage_names t ON t.name = r.tenant
		LEFT JOIN rate_limiter.usage_names e ON e.name = r.endpoint
		LEFT JOIN rate_limiter.usage_names p ON p.name = r.policy
	), minutes AS (` + add("usage_minutes", "at", "true", "", "") + ` RETURNING 1
	), hours AS (` + add("usage_hours", "date_trunc('hour', at, 'UTC')", "at < $12", "", "") + `
	), days AS (` + add("usage_days", "date_trunc('day', $14::timestamptz, 'UTC')", "at < $13", ", late", ", true") + `
	), units AS (
		UPDATE rate_limiter.usage_names n SET unit = g.unit FROM (SELECT policy, max(unit) AS unit FROM given GROUP BY 1) g
		WHERE n.id = g.policy AND n.unit <> g.unit AND n.name <> '` + otherName + `'
	), marked AS (
		UPDATE rate_limiter.usage_state SET changed_since = least(changed_since, (SELECT min(at) FROM given))
	) SELECT count(*) FROM minutes`

// add returns a statement that adds rows of given to those of a table, at a time, with a further column of one value.
func add(table, at, where, column, value string) string {
	sets := ""
	for _, name := range [...]string{"admitted", "soft", "denied", "shadow_denied", "cost"} {
		sets += fmt.Sprintf("%[1]s = %[2]s, ", name, bounded("t."+name+" + excluded."+name))
	}
	return `INSERT INTO rate_limiter.` + table + ` AS t (at, tenant, endpoint, policy` + column + `, admitted, soft,
			denied, shadow_denied, cost, remaining_min)
		SELECT ` + at + `, tenant, endpoint, policy` + value + `, ` + summed + ` FROM given WHERE ` + where + `
		GROUP BY 1, tenant, endpoint, policy ORDER BY tenant, 1, endpoint, policy
		ON CONFLICT (tenant, at, endpoint, policy` + column + `) DO UPDATE
		SET ` + sets + `remaining_min = least(t.remaining_min, excluded.remaining_min)`
}

// bounded returns an expression that keeps a sum within the bounds of a count.
func bounded(sum string) string {
	return fmt.Sprintf("greatest(-%[2]d, least(%[2]d, %[1]s))::bigint", sum, int64(maxSum))
}

var summed = func() (list string) {
	for _, name := range [...]string{"admitted", "soft", "denied", "shadow_denied", "cost"} {
		list += bounded("sum("+name+")") + ", "
	}
	return list + "min(remaining_min)"
}()

// sumUpHour sums up the minutes from $1 until $2, and moves the mark. Here and in closeDay the rows of a tenant come
// side by side, so that a read of them reads few pages.
var sumUpHour = `WITH summed AS (
		INSERT INTO rate_limiter.usage_hours (at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost,
			remaining_min)
		SELECT $1::timestamptz, tenant, endpoint, policy, ` + summed + `
		FROM rate_limiter.usage_minutes WHERE at >= $1 AND at < $2 GROUP BY tenant, endpoint, policy ORDER BY tenant
	) UPDATE rate_limiter.usage_state SET hours_until = $2`

// orderMinutes has the minutes from $1 until $2 on the disk by tenant. A page of them is read for each of their tenants
// otherwise.
const orderMinutes = `SELECT rate_limiter.order_usage_minutes($1, $2)`

// closeDay sums up the hours from $1 until $2, and moves the mark.
var closeDay = `WITH summed AS (
		INSERT INTO rate_limiter.usage_days (at, tenant, endpoint, policy, late, admitted, soft, denied, shadow_denied,
			cost, remaining_min)
		SELECT $1::timestamptz, tenant, endpoint, policy, false, ` + summed + `
		FROM rate_limiter.usage_hours WHERE at >= $1 AND at < $2 GROUP BY tenant, endpoint, policy ORDER BY tenant
	) UPDATE rate_limiter.usage_state SET days_until = $2`

// isDayComplete reports whether a day that ends at $1 has all batches of the live sources: each has reported up to $2,
// and no batch of the day waits. Sources that have not been seen since $3 are not live.
const isDayComplete = `SELECT NOT EXISTS (
		SELECT FROM rate_limiter.usage_sources WHERE seen_at >= $3 AND watermark < $2
	) AND NOT EXISTS (
		SELECT FROM rate_limiter.usage_batches WHERE began < $1 AND fault = '')`

// deleteSources keeps sources for a month after their last batch, and of each node the last ones only. Without its
// source a batch that comes once more would be added once more; it would be too late by then.
const (
	deleteSources = `DELETE FROM rate_limiter.usage_sources WHERE seen_at < clock_timestamp() - interval '31 days'
		OR (node, epoch) IN (SELECT node, epoch FROM (
			SELECT node, epoch, seen_at, row_number() OVER (PARTITION BY node ORDER BY seen_at DESC) AS place
			FROM rate_limiter.usage_sources) s
			WHERE place > 1000 AND seen_at < clock_timestamp() - interval '3 days')`
	deleteNodes = `DELETE FROM rate_limiter.usage_nodes WHERE (login, node) IN (
		SELECT login, node FROM rate_limiter.usage_nodes
		WHERE batches <= 0 AND seen_at < clock_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED)`
)

const (
	// keepPartitions makes the partitions that are due, and drops old ones.
	keepPartitions = `SELECT rate_limiter.keep_usage_partitions()`
	// deleteDenials and deleteFaulty delete after denialsKept and keptDays, deleteCalls when usage_days are dropped.
	deleteDenials = `DELETE FROM rate_limiter.abuse_denials WHERE at < clock_timestamp() - interval '1 hour'`
	deleteCalls   = `DELETE FROM rate_limiter.usage_models WHERE day < current_date - interval '3 years'`
	deleteFaulty  = `DELETE FROM rate_limiter.usage_batches
		WHERE fault <> '' AND began < date_trunc('day', clock_timestamp(), 'UTC') - interval '2 days'`
)
