package rows

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// UsageRankings lists the columns by which UsageTop ranks tenants.
var UsageRankings = []string{"admitted", "denied", "cost"}

// MaxUsageTop bounds the tenants of UsageTop.
const MaxUsageTop = 1000

// UsageTopQuery selects the tenants that used most in a time.
type UsageTopQuery struct {
	By       string // one of UsageRankings; "": all tenants with requests, in no order and without costs
	From, To time.Time
	Policy   string // "": the requests themselves, and the cost of all policies together
	Max      int    // tenants; at most MaxUsageTop. All have no maximum
}

// OrgRanking is what a tenant used.
type OrgRanking struct {
	Tenant       string `json:"org_id"        doc:"Empty: requests without an org."`
	Admitted     int64  `json:"admitted"      doc:"Requests."`
	Soft         int64  `json:"soft"          doc:"Of admitted: requests above a soft threshold."`
	Denied       int64  `json:"denied"        doc:"Requests."`
	ShadowDenied int64  `json:"shadow_denied" doc:"Requests that would have been denied outside shadow or log mode."`
	Late         int64  `json:"late"          doc:"Of admitted and denied, with step 1d: requests of earlier days that were reported after those days were closed."`
	Cost         int64  `json:"cost"          doc:"What the policy charged. Without policy the sum of all policies, of tokens and of millionths of a US dollar alike: a request counts once for each."`
	Unit         string `json:"unit,omitempty" doc:"usd: cost is in millionths of a US dollar, because the policy is in that unit now. Absent: it is in tokens." enum:"usd"`
}

// UsageTop has the tenants that used most, the first one most.
type UsageTop struct {
	By    string       `json:"by"    enum:"admitted,denied,cost"`
	From  time.Time    `json:"from"  doc:"The begin of the first step."`
	To    time.Time    `json:"to"    doc:"The end of the last step."`
	Step  string       `json:"step"  doc:"From and to are extended to whole steps of this length." enum:"1m,1h,1d"`
	Items []OrgRanking `json:"items" doc:"The org that used most is first. Orgs without any are not listed."`
}

// StepFor returns the step that a sum over all tenants reads: minutes for at most 2 hours, hours for at most 2 days,
// else days. Where the rows of a step may have been dropped, it returns a longer one.
func StepFor(from, to, now time.Time) UsageStep {
	const day = 24 * time.Hour
	length, age := to.Sub(from), now.Sub(from)
	switch {
	case length <= 2*time.Hour && age <= 2*day:
		return UsageSteps[0]
	case length <= 2*day && age <= 60*day:
		return UsageSteps[1]
	}
	return UsageSteps[2]
}

// UsageTop returns the tenants that used most of a column between two times, which it extends to whole steps. Tenants
// without any are not listed.
func (s *DB) UsageTop(ctx context.Context, q UsageTopQuery, now time.Time) (UsageTop, error) {
	if q.By != "" && !slices.Contains(UsageRankings, q.By) {
		return UsageTop{}, &InvalidError{Field: "by", Problem: "must be admitted, denied or cost"}
	}
	if q.By != "" && (q.Max < 1 || q.Max > MaxUsageTop) {
		return UsageTop{}, &InvalidError{Field: "limit", Problem: fmt.Sprintf("must be 1 to %d", MaxUsageTop)}
	}
	step := StepFor(q.From, q.To, now)
	top := UsageTop{By: q.By, Step: step.Name}
	var err error
	if top.From, top.To, err = step.cut(q.From, q.To); err != nil {
		return UsageTop{}, err
	}
	top.Items, err = readAll[OrgRanking](ctx, s.pool, "rank usage", q.sql(step), top.From, top.To, q.Policy, q.Max)
	return top, err
}

// sql returns the statement. It sums up the rows of q.Policy. The cost without a policy is that of all policies, in
// whatever units.
func (q *UsageTopQuery) sql(step UsageStep) string {
	policy := policyIs("$3")
	rows := step.rows(policy)
	sums, order := "", ` WHERE admitted + denied + shadow_denied > 0 LIMIT nullif($4, 0)`
	if q.By != "" {
		rows = step.rows(`($3 = '' OR ` + policy + `)`)
		order = ` WHERE ` + q.By + ` > 0 ORDER BY ` + q.By + ` DESC, n.name COLLATE "C" LIMIT $4`
	}
	for _, column := range [...]string{"admitted", "soft", "denied", "shadow_denied", "late"} {
		sums += `coalesce(sum(` + column + `) FILTER (WHERE ` + policy + `), 0)::bigint AS ` + column + `, `
	}
	return `SELECT n.name AS tenant, admitted, soft, denied, shadow_denied, late, cost, (
			SELECT coalesce(max(unit), '') FROM (SELECT id AS policy, unit FROM rate_limiter.usage_names) p WHERE ` + policy + `
		) AS unit FROM (
			SELECT tenant, ` + sums + `coalesce(sum(cost) FILTER (WHERE $3 <> '' OR NOT ` + policy + `), 0)::bigint AS cost
			FROM (` + rows + `) u GROUP BY tenant
		) t JOIN rate_limiter.usage_names n ON n.id = t.tenant` + order
}

// QuotaNotice is a notice that a tenant has used a percentage of a quota.
type QuotaNotice struct {
	NoticedAt   time.Time  `json:"noticed_at"`
	Tenant      string     `json:"org_id"`
	Policy      string     `json:"policy"                     doc:"The name of the policy."`
	PolicyID    int64      `json:"policy_id,omitempty" db:"-" doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	Tier        string     `json:"tier,omitempty" db:"-"      doc:"The tier whose list in the plugin's config has the policy."`
	Endpoint    string     `json:"endpoint"                   doc:"A policy's pattern, or a route's name; empty: none."`
	Threshold   int64      `json:"threshold"                  doc:"The percentage that was reached: 50, 80 or 100."`
	Limit       int64      `json:"limit"                      doc:"Tokens."`
	Used        int64      `json:"used"                       doc:"Tokens."`
	Unit        string     `json:"unit,omitempty"             doc:"usd: amounts are millionths of a US dollar. Absent: they are tokens." enum:"usd"`
	WindowStart time.Time  `json:"window_start"`
	WindowEnd   time.Time  `json:"window_end"`
	ExhaustedAt *time.Time `json:"exhausted_at"               doc:"A forecast at the rate of that time; null: not within the window."`
	Late        bool       `json:"late"                       doc:"The threshold may have been reached more than five minutes before the notice."`
}

// QuotaNotices returns the last notices of a tenant since a time, or of all tenants if its name is empty, newest first.
func (s *DB) QuotaNotices(ctx context.Context, tenant string, since time.Time, most int) ([]QuotaNotice, error) {
	list, err := readAll[QuotaNotice](ctx, s.pool, "read notices of quotas", `
		SELECT noticed_at, tenant, policy, endpoint, threshold::bigint, "limit", used, unit, window_start, window_end,
			exhausted_at, late
		FROM rate_limiter.quota_notices WHERE ($1 = '' OR tenant = $1) AND noticed_at >= $2
		ORDER BY noticed_at DESC, tenant COLLATE "C", policy COLLATE "C", endpoint COLLATE "C" LIMIT $3`,
		tenant, since, most)
	for i := range list {
		ref := policy.ParseRef(list[i].Policy)
		list[i].Policy, list[i].PolicyID, list[i].Tier = ref.Name, ref.Row, ref.Tier
	}
	return list, err
}
