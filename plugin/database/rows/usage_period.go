package rows

import (
	"context"
	"strings"
	"time"
)

const (
	// minutesKept and hoursKept are the least times for which rows are kept, see keep_usage_partitions.
	minutesKept, hoursKept = 47 * time.Hour, 59 * 24 * time.Hour
	// resetTime is the most after which a reset has emptied its buckets, once it is recorded.
	resetTime = actionTime
)

// UsagePeriod is the step of a history with one row for all of the time between two instants, which are extended to
// whole minutes.
var UsagePeriod = UsageStep{Name: "period", Span: time.Minute}

// isExactAt reports whether usage can be summed up from an instant on, or until it, to the minute. Of older times only
// whole hours are kept, and then whole days of UTC.
func isExactAt(at, now time.Time) bool {
	at = at.UTC()
	switch age := now.Sub(at); {
	case at.Equal(at.Truncate(24 * time.Hour)):
		return true
	case at.Equal(at.Truncate(time.Hour)):
		return age < hoursKept
	default:
		return age < minutesKept
	}
}

// usageBetween returns a statement for what was used from an instant until another, with a further condition. The
// instants are expressions of SQL. What was used is in one row: of minutes, where these are kept or not summed up yet
// or the instants cut their hour, else of hours, else of days. Where the rows that cut an hour or a day are no longer
// kept, its part is left out. Days leave out what came late in the first three days: it may be from before them.
func usageBetween(from, until, condition string) string {
	next := func(unit, length string) string {
		return `date_trunc('` + unit + `', $from + interval '` + length + `' - interval '1 microsecond', 'UTC')`
	}
	return strings.NewReplacer(
		"$columns", `SELECT at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost, remaining_min, `,
		"$state", `rate_limiter.usage_state WHERE `+condition,
		"$firstHour", strings.ReplaceAll(next("hour", "1 hour"), "$from", from),
		"$lastHour", `date_trunc('hour', `+until+`, 'UTC')`,
		"$firstDay", strings.ReplaceAll(next("day", "24 hours"), "$from", from),
		"$lastDay", `date_trunc('day', `+until+`, 'UTC')`,
		"$hoursKept", `least(days_until, date_trunc('day', now() - interval '59 days', 'UTC'))`,
		"$from", from, "$until", until,
	).Replace(`
		$columns 0 AS late FROM rate_limiter.usage_minutes, $state
			AND at >= $from AND at < $until AND (at >= hours_until OR at < $firstHour OR at >= $lastHour)
		UNION ALL
		$columns 0 FROM rate_limiter.usage_hours, $state
			AND at >= $firstHour AND at < $lastHour AND at < hours_until
			AND (at >= $hoursKept OR at < $firstDay OR at >= $lastDay)
		UNION ALL
		$columns CASE WHEN late THEN admitted + denied ELSE 0 END FROM rate_limiter.usage_days, $state
			AND at >= $firstDay AND at < least($lastDay, $hoursKept)
			AND (NOT late OR at >= $firstDay + interval '72 hours')`)
}

// UsageTenants returns the names of the tenants with usage since a time, in the order of their bytes.
func (s *DB) UsageTenants(ctx context.Context, since time.Time) ([]string, error) {
	used := func(table string) string {
		return `EXISTS (SELECT FROM rate_limiter.` + table + ` WHERE tenant = n.id AND at >= $1)`
	}
	names, err := scalars[string](ctx, s.pool, `SELECT name FROM rate_limiter.usage_names n WHERE name <> '' AND (`+
		used("usage_minutes")+` OR `+used("usage_hours")+` OR `+used("usage_days")+`) ORDER BY name`, since)
	return names, fail("list the tenants with usage", err)
}

// UsageSpent calls add with what each policy has charged a tenant at an endpoint since an instant, for each of tenants
// and the instant in the same place of since. Policies are texts of a policy.Ref. It leaves out what it does not know
// for certain: parts of hours and days that are no longer kept, and policies of the database for a tenant whose
// requests another namespace may have counted.
func (s *DB) UsageSpent(
	ctx context.Context, namespace string, tenants []string, since []time.Time,
	add func(place int, policy, endpoint string, cost int64),
) error {
	type spent struct {
		Place            int
		Policy, Endpoint string
		Cost             int64
	}
	found := each[spent](ctx, s.pool, "read what was spent", `
		SELECT q.place::bigint - 1 AS place, p.name AS policy, e.name AS endpoint, u.cost
		FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY q (tenant, since, place)
		JOIN rate_limiter.usage_names t ON t.name = q.tenant
		CROSS JOIN LATERAL (
			SELECT policy, endpoint, sum(cost)::bigint AS cost
			FROM (`+usageBetween("q.since", "timestamptz 'infinity'", "tenant = t.id")+`) r
			GROUP BY policy, endpoint
		) u
		JOIN rate_limiter.usage_names e ON e.id = u.endpoint JOIN rate_limiter.usage_names p ON p.id = u.policy
		WHERE p.name <> '' AND NOT (p.name LIKE '%/#%' AND EXISTS (
			SELECT FROM rate_limiter.tenant_tiers o WHERE o.tenant = t.id AND o.namespace <> $3))`, tenants, since, namespace)
	for row, err := range found {
		if err != nil {
			return err
		}
		add(row.Place, row.Policy, row.Endpoint, row.Cost)
	}
	return nil
}

// BucketResets calls add with each bucket of a tenant that an operator has emptied since an instant, and when that was
// done at the latest. It leaves out buckets of users, credentials and addresses.
func (s *DB) BucketResets(
	ctx context.Context, since time.Time, add func(tenant, policy, endpoint string, done time.Time),
) error {
	type reset struct {
		Tenant, Policy, Endpoint string
		At                       time.Time
	}
	for row, err := range each[reset](ctx, s.pool, "read resets", `
		SELECT a.tenant, b->>'policy' AS policy, coalesce(b->>'endpoint', '') AS endpoint, a.at
		FROM rate_limiter.audit a CROSS JOIN jsonb_array_elements(a.after->'buckets') b
		WHERE a.at >= $1 AND a.kind = 'action' AND a.operation = 'reset' AND a.tenant <> ''
			AND NOT b ?| ARRAY['user', 'credential', 'ip']`, since) {
		if err != nil {
			return err
		}
		add(row.Tenant, row.Policy, row.Endpoint, row.At.Add(resetTime))
	}
	return nil
}
