package sender

const (
	// selectHooks selects the webhooks that take events, with the deliveries that wait for each.
	selectHooks = `SELECT w.id, w.org, w.types, w.created_at, coalesce(d.waiting, 0)
		FROM rate_limiter.webhooks w LEFT JOIN (
			SELECT webhook, count(*) AS waiting FROM rate_limiter.webhook_deliveries WHERE state = 'waiting' GROUP BY webhook
		) d ON d.webhook = w.id
		WHERE w.enabled`

	takeDenials = `DELETE FROM rate_limiter.webhook_denials WHERE id IN (
			SELECT id FROM rate_limiter.webhook_denials ORDER BY id LIMIT $1)
		RETURNING id, received_at, event, node, at, tenant, data::text`

	// insertDelivery makes the deliveries of one read due at once ($5), and created one after the other ($6).
	insertDelivery = `INSERT INTO rate_limiter.webhook_deliveries (id, webhook, events, body, created_at, due_at)
		SELECT $1, w.id, $3, $4, $5::timestamptz + $6::bigint * interval '1 microsecond', $5
		FROM rate_limiter.webhooks w WHERE w.id = $2`

	addDropped = `UPDATE rate_limiter.webhooks SET dropped = dropped + $2 WHERE id = $1`

	// selectDue selects the next delivery of each webhook that has none in flight ($2) at $1, first those whose last try
	// did not fail.
	selectDue = `SELECT d.id, w.id, w.org, w.url, d.body, d.events, d.tries, d.created_at, w.failing_since IS NOT NULL,
			w.failures, (SELECT array_agg(s.secret ORDER BY s.id DESC) FROM rate_limiter.webhook_secrets s
				WHERE s.webhook = w.id AND (s.signs_until IS NULL OR s.signs_until > $1))
		FROM rate_limiter.webhooks w, LATERAL (
			SELECT * FROM rate_limiter.webhook_deliveries
			WHERE webhook = w.id AND state = 'waiting' AND due_at <= $1 ORDER BY due_at, created_at LIMIT 1
		) d
		WHERE w.enabled AND (w.hold_until IS NULL OR w.hold_until <= $1) AND w.id <> ALL($2::bigint[])
		ORDER BY w.failing_since IS NOT NULL, d.due_at LIMIT $3`

	endDelivery = `UPDATE rate_limiter.webhook_deliveries
		SET state = $2, body = '', tries = tries + 1, status = $3, error = $4, tried_at = $5
		WHERE id = $1 AND state = 'waiting'`

	retryDelivery = `UPDATE rate_limiter.webhook_deliveries
		SET due_at = $2, tries = tries + 1, status = $3, error = $4, tried_at = $5
		WHERE id = $1 AND state = 'waiting'`

	recordSuccess = `UPDATE rate_limiter.webhooks
		SET failing_since = NULL, failures = 0, last_error = '', hold_until = NULL, delivered_at = $2 WHERE id = $1`

	recordFailure = `UPDATE rate_limiter.webhooks
		SET failing_since = coalesce(failing_since, $2), failures = failures + 1, last_error = $3, hold_until = $4
		WHERE id = $1 RETURNING failing_since, failures`

	disableHook = `UPDATE rate_limiter.webhooks SET enabled = false, disabled_for = $2 WHERE id = $1 AND enabled`

	// giveUp ends deliveries that were made before $1, as far as the retention has not ended them.
	giveUp = `WITH ended AS (
			UPDATE rate_limiter.webhook_deliveries SET state = 'failed', body = ''
			WHERE id IN (SELECT id FROM rate_limiter.webhook_deliveries WHERE state = 'waiting' AND created_at < $1 LIMIT 1000)
			RETURNING webhook, events
		), lost AS (
			SELECT webhook, sum(events) AS n FROM ended GROUP BY webhook
		), counted AS (
			UPDATE rate_limiter.webhooks w SET dropped = w.dropped + lost.n FROM lost WHERE w.id = lost.webhook
		) SELECT coalesce(sum(n), 0)::bigint FROM lost`

	deleteEnded = `DELETE FROM rate_limiter.webhook_deliveries WHERE id IN (
		SELECT id FROM rate_limiter.webhook_deliveries WHERE state <> 'waiting' AND created_at < $1 LIMIT 1000)`

	deleteSecrets = `DELETE FROM rate_limiter.webhook_secrets WHERE signs_until <= $1`

	countHooks = `SELECT count(*) FILTER (WHERE enabled AND failing_since IS NULL),
			count(*) FILTER (WHERE enabled AND failing_since IS NOT NULL),
			count(*) FILTER (WHERE disabled_for <> ''),
			(SELECT count(*) FROM rate_limiter.webhook_deliveries WHERE state = 'waiting')
		FROM rate_limiter.webhooks`
)
