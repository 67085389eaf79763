package rows

import (
	"context"
	"iter"
	"time"
)

// UsageLeft is the least that a policy left a tenant at an endpoint.
type UsageLeft struct {
	Tenant    string
	Endpoint  string // "": none
	Policy    string // the text of a policy.Ref
	Remaining int64
	At        time.Time // the begin of the last minute that has a number
}

// UsageLeft yields the least that each policy left each tenant in the minutes since a time ago, those of a tenant one
// after the other. The minute in which that time lies counts as a whole. It leaves out requests without a tenant, and
// rows without a number. It holds a connection until it ends.
func (s *Store) UsageLeft(ctx context.Context, ago time.Duration) iter.Seq2[UsageLeft, error] {
	return each[UsageLeft](ctx, s.pool, "read what limits left", `
		SELECT t.name AS tenant, e.name AS endpoint, p.name AS policy, u.remaining, u.at
		FROM (
			SELECT tenant, endpoint, policy, min(remaining_min) AS remaining, max(at) AS at FROM rate_limiter.usage_minutes
			WHERE at >= date_trunc('minute', now() - $1::interval) AND remaining_min IS NOT NULL
			GROUP BY tenant, endpoint, policy
		) u
		JOIN rate_limiter.usage_names t ON t.id = u.tenant JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		JOIN rate_limiter.usage_names p ON p.id = u.policy
		WHERE t.name <> '' AND p.name <> '' ORDER BY u.tenant`, ago)
}
