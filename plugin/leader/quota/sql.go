package quota

const (
	// lockState locks the state of usage, as each transaction of the leader does.
	lockState = `SELECT changed_since, checked_at, clock_timestamp() FROM rate_limiter.usage_state FOR UPDATE`

	// selectUses lists what was in use since a minute, and when last, ordered by tenant.
	selectUses = `SELECT t.name, p.name, e.name, u.at
		FROM (
			SELECT tenant, policy, endpoint, max(at) AS at FROM rate_limiter.usage_minutes
			WHERE at >= $1 GROUP BY tenant, policy, endpoint
		) u
		JOIN rate_limiter.usage_names t ON t.id = u.tenant JOIN rate_limiter.usage_names p ON p.id = u.policy
		JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		WHERE t.name <> '' AND p.name <> '' ORDER BY t.name COLLATE "C"`

	// selectNew returns which of some notices are new, by their places.
	selectNew = `SELECT place::bigint
		FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::smallint[])
			WITH ORDINALITY n (tenant, policy, endpoint, window_start, window_end, threshold, place)
		WHERE NOT EXISTS (
			SELECT FROM rate_limiter.quota_notices o
			WHERE o.tenant = n.tenant AND o.policy = n.policy AND o.endpoint = n.endpoint
				AND o.window_start = n.window_start AND o.window_end = n.window_end AND o.threshold >= n.threshold)
		ORDER BY place`

	// selectCosts returns what a policy charged a tenant since a minute, by endpoint.
	selectCosts = `SELECT e.name, sum(u.cost)::bigint
		FROM rate_limiter.usage_minutes u JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		WHERE u.tenant = (SELECT id FROM rate_limiter.usage_names WHERE name = $1)
			AND u.policy = (SELECT id FROM rate_limiter.usage_names WHERE name = $2) AND u.at >= $3
		GROUP BY e.name`

	// deleteReplaced deletes the notices of a window of another length that began at the same time.
	deleteReplaced = `DELETE FROM rate_limiter.quota_notices
		WHERE tenant = $1 AND policy = $2 AND endpoint = $3 AND window_start = $4 AND window_end <> $5`

	insertNotice = `INSERT INTO rate_limiter.quota_notices (tenant, policy, endpoint, window_start, threshold, window_end,
			"limit", used, exhausted_at, late, noticed_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

	setChecked = `UPDATE rate_limiter.usage_state SET changed_since = NULL, checked_at = $1`

	// deleteOld deletes a batch of notices 60 days after the ends of their windows.
	deleteOld = `DELETE FROM rate_limiter.quota_notices WHERE ctid IN (
		SELECT ctid FROM rate_limiter.quota_notices WHERE window_end < clock_timestamp() - interval '60 days'
		ORDER BY window_end LIMIT 1000)`
)
