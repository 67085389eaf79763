package rows

import (
	"context"
	"iter"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// UsageExportQuery selects the days of an export.
type UsageExportQuery struct {
	From, To time.Time // midnights of UTC
	Open     bool      // also days that are not closed
	Policy   string    // "": the requests themselves
	ByPolicy bool      // a row for each policy, and one for the requests themselves
}

// UsageExportRow is what a tenant used of an endpoint on a day.
type UsageExportRow struct {
	Day          string `json:"day"` // of UTC: 2026-11-30
	Tenant       string `json:"org_id"`
	Endpoint     string `json:"endpoint"`
	Policy       string `json:"policy"`
	PolicyID     int64  `json:"policy_id,omitempty" db:"-"`
	Tier         string `json:"tier,omitempty" db:"-"` // whose list in a config has the policy
	Admitted     int64  `json:"admitted"`
	Soft         int64  `json:"soft"`
	Denied       int64  `json:"denied"`
	ShadowDenied int64  `json:"shadow_denied"`
	Late         int64  `json:"late"`
	Cost         *int64 `json:"cost"`   // nil in the rows of the requests themselves
	Closed       bool   `json:"closed"` // the day's rows do not change any more
}

// UsageClosedUntil returns the midnight before which all days are closed.
func (s *DB) UsageClosedUntil(ctx context.Context) (time.Time, error) {
	var until time.Time
	if err := s.pool.QueryRow(ctx, `SELECT days_until FROM rate_limiter.usage_state`).Scan(&until); err != nil {
		return time.Time{}, fail("read usage", err)
	}
	return until.UTC(), nil
}

// UsageExport yields what every tenant used of every endpoint by day, ordered by day, tenant, endpoint and policy. It
// holds a connection until it ends. Without q.Open it yields only days that are closed, which do not change. Its days
// are read at one instant.
func (s *DB) UsageExport(ctx context.Context, q UsageExportQuery) iter.Seq2[UsageExportRow, error] {
	rows := UsageSteps[2].rows(`($3 OR at < days_until) AND
		($4 OR ` + policyIs("$5") + `)`)
	all := each[UsageExportRow](ctx, s.pool, "export usage", `
		SELECT to_char(u.day AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, t.name AS tenant, e.name AS endpoint,
			p.name AS policy, admitted, soft, denied, shadow_denied, late,
			CASE WHEN p.name <> '' THEN cost END AS cost, u.day < days_until AS closed
		FROM (
			SELECT date_trunc('day', at, 'UTC') AS day, tenant, endpoint, policy, `+usageSums+`, sum(cost)::bigint AS cost
			FROM (`+rows+`) r GROUP BY 1, 2, 3, 4
		) u
		CROSS JOIN rate_limiter.usage_state
		JOIN rate_limiter.usage_names t ON t.id = u.tenant JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		JOIN rate_limiter.usage_names p ON p.id = u.policy
		ORDER BY u.day, t.name COLLATE "C", e.name COLLATE "C", p.name COLLATE "C"`,
		q.From, q.To, q.Open, q.ByPolicy, q.Policy)
	return func(yield func(UsageExportRow, error) bool) {
		for row, err := range all {
			ref := policy.ParseRef(row.Policy)
			row.Policy, row.PolicyID, row.Tier = ref.Name, ref.Row, ref.Tier
			if !yield(row, err) {
				return
			}
		}
	}
}
