package rows

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// UsageStep is the time that one row of a usage history covers.
type UsageStep struct {
	Name string // 1m, 1h or 1d
	Span time.Duration

	unit string   // of date_trunc
	from []string // the tables to read, each from where the one before it ends
}

// UsageSteps lists the steps, the shortest first.
var UsageSteps = []UsageStep{
	{"1m", time.Minute, "minute", []string{"usage_minutes"}},
	{"1h", time.Hour, "hour", []string{"usage_hours", "usage_minutes"}},
	{"1d", 24 * time.Hour, "day", []string{"usage_days", "usage_hours", "usage_minutes"}},
}

// UsageStepOf returns the step of a name.
func UsageStepOf(name string) (UsageStep, error) {
	i := slices.IndexFunc(UsageSteps, func(s UsageStep) bool { return s.Name == name })
	if i < 0 {
		return UsageStep{}, &InvalidError{Field: "step", Problem: "must be 1m, 1h or 1d"}
	}
	return UsageSteps[i], nil
}

const (
	// MaxUsageSteps bounds the steps of a history: a day of minutes, 60 days of hours, or 3 years of days.
	MaxUsageSteps = 1500
	// MaxUsageRows bounds the rows of a history that is grouped.
	MaxUsageRows = 10_000
)

// UsageQuery selects a usage history of a tenant.
type UsageQuery struct {
	Tenant     string // "": requests without one
	AllTenants bool   // the sums of all, whatever Tenant is
	From, To   time.Time
	Step       UsageStep
	Endpoint   *string // nil: all endpoints
	Policy     string  // a row for each policy of a name, or that of a policy.Ref; "": the requests themselves
	ByEndpoint bool    // a row for each endpoint
	ByPolicy   bool    // a row for each policy, and one for the requests themselves
	ByModel    bool    // the calls of models by day, in place of rows
}

// UsageRow is what a tenant used in one step.
type UsageRow struct {
	At           time.Time `json:"at"                      doc:"The begin of the step, in UTC."`
	Endpoint     *string   `json:"endpoint,omitempty"      doc:"Present with group_by=endpoint; empty: none."`
	Policy       *string   `json:"policy,omitempty"        doc:"Present with group_by=policy and with policy; empty: the requests themselves."`
	PolicyID     int64     `json:"policy_id,omitempty"     doc:"The id of that policy in the database; absent: it is in the plugin's config." db:"-"`
	Tier         string    `json:"tier,omitempty"          doc:"The tier whose list in the plugin's config has the policy: policies of one name in two tiers count apart." db:"-"`
	Admitted     int64     `json:"admitted"                doc:"Requests."`
	Soft         int64     `json:"soft"                    doc:"Of admitted: requests above a soft threshold."`
	Denied       int64     `json:"denied"                  doc:"Requests."`
	ShadowDenied int64     `json:"shadow_denied"           doc:"Requests that would have been denied outside shadow or log mode."`
	Late         int64     `json:"late"                    doc:"Of admitted and denied, with step 1d: requests of earlier days that were reported after those days were closed."`
	Cost         *int64    `json:"cost,omitempty"          doc:"Tokens that the policy charged; negative: it returned more. Absent for the requests themselves."`
	Remaining    *int64    `json:"remaining_min,omitempty" doc:"The least that was left of the policy's limit. Absent if unknown, and for the requests themselves."`
	Unit         string    `json:"unit,omitempty"          doc:"usd: cost and remaining_min are millionths of a US dollar; absent: they are tokens."`
	CostUSD      string    `json:"-"` // of cost, as in UsageExportRow
}

// UsageHistory has the rows of a query, oldest first.
type UsageHistory struct {
	Tenant      string     `json:"org_id"`
	From        time.Time  `json:"from"         doc:"The begin of the first step."`
	To          time.Time  `json:"to"           doc:"The end of the last step."`
	Step        string     `json:"step"         doc:"period: one row for all of it." enum:"1m,1h,1d,period"`
	Period      string     `json:"period,omitempty"    doc:"With step period: what from and to bound." enum:"day,week,month,quarter,year"`
	TimeZone    string     `json:"time_zone,omitempty" doc:"With step period: where the period begins."  example:"Europe/Berlin"`
	Inexact     bool       `json:"inexact,omitempty"   doc:"With step period: part of the first or last hour, or day of UTC, is left out, because rows of minutes, or of hours, are no longer kept."`
	ClosedUntil time.Time  `json:"closed_until" doc:"Days before this time are closed: their rows of step 1d do not change."`
	Items       []UsageRow `json:"items"        doc:"Oldest first. A step without requests has no row."`

	Models []UsageModel `json:"models,omitempty" doc:"With group_by=model, in place of items: what calls of language models used, by day and model, oldest first."`
}

// check cuts the times to whole steps, and returns an InvalidError for a query that is too long.
func (q *UsageQuery) check() error {
	var err error
	if q.From, q.To, err = q.Step.cut(q.From, q.To); err != nil {
		return err
	}
	if q.ByModel && (q.Step.Name != "1d" || q.Endpoint != nil || q.Policy != "") {
		return &InvalidError{Field: "group_by", Problem: "model is counted by day, and for all endpoints and policies " +
			"together: use step=1d, and leave out endpoint, policy and period"}
	}
	if q.Step.Name != UsagePeriod.Name && q.To.Sub(q.From) > MaxUsageSteps*q.Step.Span {
		return &InvalidError{Field: "step", Problem: fmt.Sprintf(
			"from and to are more than %d steps apart: choose a longer step or a shorter time", MaxUsageSteps)}
	}
	return nil
}

// The years of usage. JSON has no times before the year 0 and after the year 9999.
const firstYear, lastYear = 1970, 9998

// cut returns the times, extended to whole steps of UTC. The error is an InvalidError: there is no time between them,
// or one is in no year of usage.
func (s UsageStep) cut(from, to time.Time) (first, end time.Time, err error) {
	first, end = from.UTC().Truncate(s.Span), to.UTC().Truncate(s.Span)
	if !end.Equal(to) {
		end = end.Add(s.Span)
	}
	if !first.Before(end) {
		return first, end, &InvalidError{Field: "from", Problem: "must be before to"}
	}
	years := fmt.Sprintf("must be in the years %d to %d", firstYear, lastYear)
	switch {
	case first.Year() < firstYear:
		return first, end, &InvalidError{Field: "from", Problem: years}
	case end.Year() > lastYear:
		return first, end, &InvalidError{Field: "to", Problem: years}
	}
	return first, end, nil
}

// beginHistory reads when the last day was closed, and has Postgres read pages ahead in this transaction: the rows of a
// tenant are on as many pages as there were minutes. It leaves a server that never reads ahead as it is.
const beginHistory = `SELECT days_until, clock_timestamp(), CASE WHEN current_setting('effective_io_concurrency') <> '0'
		THEN set_config('effective_io_concurrency', '32', true) END
	FROM rate_limiter.usage_state`

// Usage returns a usage history of a tenant. It covers what the leader has unpacked, also what is not summed up yet.
// Steps without requests have no row.
func (s *DB) Usage(ctx context.Context, q UsageQuery) (UsageHistory, error) {
	if err := q.check(); err != nil {
		return UsageHistory{}, err
	}
	found := UsageHistory{Tenant: q.Tenant, From: q.From, To: q.To, Step: q.Step.Name}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		var now time.Time
		if err = tx.QueryRow(ctx, beginHistory).Scan(&found.ClosedUntil, &now, nil); err == nil {
			found.ClosedUntil = found.ClosedUntil.UTC()
			found.Inexact = q.Step.Name == UsagePeriod.Name && !(isExactAt(q.From, now) && isExactAt(q.To, now))
			err = found.read(ctx, tx, &q)
		}
		return err
	})
	if err != nil {
		return UsageHistory{}, fail("read usage", err)
	}
	if max(len(found.Items), len(found.Models)) > MaxUsageRows {
		return UsageHistory{}, &InvalidError{Field: "step", Problem: fmt.Sprintf(
			"there are more than %d rows: choose a longer step or a shorter time, or filter", MaxUsageRows)}
	}
	for i := range found.Items {
		row := &found.Items[i]
		if row.At = row.At.UTC(); row.Policy != nil {
			ref := policy.ParseRef(*row.Policy)
			row.Policy, row.PolicyID, row.Tier = &ref.Name, ref.Row, ref.Tier
		}
	}
	return found, nil
}

// read reads the rows or the models of a query.
func (h *UsageHistory) read(ctx context.Context, tx pgx.Tx, q *UsageQuery) (err error) {
	if q.ByModel {
		h.Items = []UsageRow{}
		h.Models, err = readAll[UsageModel](ctx, tx, "read usage by model",
			usageModels+`n.name = $3 ORDER BY day, model`+limitTo(MaxUsageRows+1), q.From, q.To, q.Tenant)
		return err
	}
	sql, args := q.sql()
	h.Items, err = readAll[UsageRow](ctx, tx, "read usage", sql, args...)
	return err
}

// usageStarts maps each table to the time before which another table of the same step has the rows.
var usageStarts = map[string]string{"usage_minutes": "hours_until", "usage_hours": "days_until"}

// rows returns a statement for the rows of a step from $1 until $2, with a further condition. Its tables are read at
// one instant, so no row counts in two of them. Without a query in a condition of its own, a table is read in parallel.
func (s UsageStep) rows(condition string) string {
	var b strings.Builder
	for i, table := range s.from {
		begin, late := "", "0"
		if i > 0 {
			b.WriteString(" UNION ALL ")
			begin = " AND at >= " + usageStarts[table]
			table += ", rate_limiter.usage_state"
		}
		if table == "usage_days" {
			late = "CASE WHEN late THEN admitted + denied ELSE 0 END"
		}
		b.WriteString(`SELECT at, tenant, endpoint, policy, admitted, soft, denied, shadow_denied, cost, remaining_min, ` +
			late + ` AS late
			FROM rate_limiter.` + table + ` WHERE at >= $1 AND at < $2` + begin)
	}
	return `SELECT * FROM (` + b.String() + `) r WHERE ` + condition
}

// usageSums lists the sums of requests by column, each of a row's counts.
const usageSums = `sum(admitted)::bigint AS admitted, sum(soft)::bigint AS soft, sum(denied)::bigint AS denied,
	sum(shadow_denied)::bigint AS shadow_denied, sum(late)::bigint AS late`

// policyIs returns a condition for the policies of a name, or the one of a policy.Ref, given as a parameter; "" is that
// of the requests themselves.
func policyIs(parameter string) string {
	return strings.ReplaceAll(`policy = ANY (ARRAY(SELECT id FROM rate_limiter.usage_names
		WHERE name = $ OR $ <> '' AND name >= $ || '/' AND name < $ || '0'))`, "$", parameter) // 0 follows the slash
}

// sql returns the statement with its arguments. It reads only rows that it selects, by indexes, and the names of its
// groups one by one: there are names of all tenants.
func (q *UsageQuery) sql() (string, []any) {
	const id = `(SELECT id FROM rate_limiter.usage_names WHERE name = %s)`
	rows := where{args: []any{q.From, q.To}}
	if !q.AllTenants {
		rows.add("tenant = "+id, q.Tenant)
	}
	if q.Endpoint != nil {
		rows.add("endpoint = "+id, *q.Endpoint)
	}
	endpoint, policy := "NULL::integer", "NULL::integer"
	if q.ByEndpoint {
		endpoint = "endpoint"
	}
	if q.ByPolicy || q.Policy != "" {
		policy = "policy"
	}
	if !q.ByPolicy || q.Policy != "" {
		rows.add(policyIs("%[1]s"), q.Policy)
	}
	ofPolicy := "policy IS DISTINCT FROM " + fmt.Sprintf(id, "''")
	condition := strings.Join(rows.conditions, " AND ")
	at, all := `date_trunc('`+q.Step.unit+`', at, 'UTC')`, q.Step.rows(condition)
	if q.Step.Name == UsagePeriod.Name {
		at, all = "$1::timestamptz", usageBetween("$1::timestamptz", "$2::timestamptz", condition)
	}
	return `SELECT at, (SELECT name FROM rate_limiter.usage_names WHERE id = endpoint) AS endpoint,
			p.name AS policy, admitted, soft, denied, shadow_denied, late, cost, remaining, coalesce(unit, '') AS unit,
			CASE WHEN unit = 'usd' THEN ` + usdOf("cost") + ` ELSE '' END AS cost_usd
		FROM (
			SELECT ` + at + ` AS at, ` + endpoint + ` AS endpoint, ` + policy + ` AS policy,
				` + usageSums + `, sum(cost) FILTER (WHERE ` + ofPolicy + `)::bigint AS cost,
				min(remaining_min) FILTER (WHERE ` + ofPolicy + `) AS remaining
			FROM (` + all + `) u GROUP BY 1, 2, 3
		) groups LEFT JOIN LATERAL (SELECT name, unit FROM rate_limiter.usage_names WHERE id = policy OFFSET 0) p ON true
		ORDER BY 1, 2, 3` + limitTo(MaxUsageRows+1), rows.args
}

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
func (s *DB) UsageLeft(ctx context.Context, ago time.Duration) iter.Seq2[UsageLeft, error] {
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

// UsageExportQuery selects the days of an export.
type UsageExportQuery struct {
	From, To time.Time // midnights of UTC
	Open     bool      // also days that are not closed
	Policy   string    // "": the requests themselves
	ByPolicy bool      // a row for each policy, and one for the requests themselves

	After []string // only rows of the first day behind this tenant, endpoint and UsageExportRow.Ref; nil: all
	Max   int      // at most so many rows
}

// UsageExportRow is what a tenant used of an endpoint on a day.
type UsageExportRow struct {
	Day          string `json:"day"                       doc:"The day of UTC; with period, the date on which it began in time_zone." example:"2026-11-30"`
	Tenant       string `json:"org_id"                    doc:"Empty: requests without an org."`
	Endpoint     string `json:"endpoint"                  doc:"A policy's pattern, or a route's name; empty: none."`
	Ref          string `json:"-" db:"policy"` // the text of a policy.Ref
	Policy       string `json:"policy" db:"-"             doc:"Empty: the requests themselves."`
	PolicyID     int64  `json:"policy_id,omitempty" db:"-" doc:"The id of the policy in the database; absent: it is in the plugin's config."`
	Tier         string `json:"tier,omitempty" db:"-"     doc:"The tier whose list in the plugin's config has the policy."`
	Admitted     int64  `json:"admitted"                  doc:"Requests."`
	Soft         int64  `json:"soft"                      doc:"Of admitted: requests above a soft threshold."`
	Denied       int64  `json:"denied"                    doc:"Requests."`
	ShadowDenied int64  `json:"shadow_denied"             doc:"Requests that would have been denied outside shadow or log mode."`
	Late         int64  `json:"late"                      doc:"Of admitted and denied: requests of earlier days that were reported after those days were closed."`
	Cost         *int64 `json:"cost"                      doc:"Tokens that the policy charged; null for the requests themselves."`
	CostUSD      string `json:"cost_usd,omitempty"        doc:"The cost in US dollars, a decimal with 2 to 6 places; present if the policy's unit is usd now." example:"0.0042"`
	Closed       bool   `json:"closed"                    doc:"The items of the day do not change any more."`

	UsagePeriodOf
}

// UsagePeriodOf says which period of a tenant a row of an export covers. It is zero for a day.
type UsagePeriodOf struct {
	Period   string    `json:"period,omitempty"    db:"-" doc:"Present with period: day, week, month, quarter or year."`
	TimeZone string    `json:"time_zone,omitempty" db:"-" doc:"Where the period begins and ends."  example:"Europe/Berlin"`
	From     time.Time `json:"from,omitzero"       db:"-" doc:"The begin of the period."`
	To       time.Time `json:"to,omitzero"         db:"-" doc:"The end of the period."`
	Inexact  bool      `json:"inexact,omitempty"   db:"-" doc:"Parts of hours or days at its begin or end are no longer kept, and left out."`
}

// UsageClosedUntil returns the midnight before which all days are closed.
func (s *DB) UsageClosedUntil(ctx context.Context) (time.Time, error) {
	var until time.Time
	if err := s.pool.QueryRow(ctx, `SELECT days_until FROM rate_limiter.usage_state`).Scan(&until); err != nil {
		return time.Time{}, fail("read usage", err)
	}
	return until.UTC(), nil
}

// UsageExport returns what every tenant used of every endpoint by day, ordered by day, tenant, endpoint and policy.
// Without q.Open it has only days that are closed, which do not change.
func (s *DB) UsageExport(ctx context.Context, q UsageExportQuery) ([]UsageExportRow, error) {
	condition := `($3 OR at < (SELECT days_until FROM rate_limiter.usage_state)) AND ($6 OR ` + policyIs("$7") + `)`
	sql := `
		SELECT to_char(u.day AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, t.name AS tenant, e.name AS endpoint,
			p.name AS policy, admitted, soft, denied, shadow_denied, late,
			CASE WHEN p.name <> '' THEN cost END AS cost, u.day < days_until AS closed,
			CASE WHEN p.unit = 'usd' THEN ` + usdOf("cost") + ` ELSE '' END AS cost_usd
		FROM (
			SELECT date_trunc('day', at, 'UTC') AS day, tenant, endpoint, policy, ` + usageSums + `, sum(cost)::bigint AS cost
			FROM (` + UsageSteps[2].rows(condition) + `) r GROUP BY 1, 2, 3, 4
		) u
		CROSS JOIN rate_limiter.usage_state
		JOIN rate_limiter.usage_names t ON t.id = u.tenant JOIN rate_limiter.usage_names e ON e.id = u.endpoint
		JOIN rate_limiter.usage_names p ON p.id = u.policy
		WHERE $4::text[] IS NULL OR ARRAY[t.name COLLATE "C", e.name, p.name] > $4
		ORDER BY t.name COLLATE "C", e.name COLLATE "C", p.name COLLATE "C" LIMIT $5`
	found, err := exportDays[UsageExportRow](ctx, s, q, sql, q.ByPolicy, q.Policy)
	for i := range found {
		ref := policy.ParseRef(found[i].Ref)
		found[i].Policy, found[i].PolicyID, found[i].Tier = ref.Name, ref.Row, ref.Tier
	}
	return found, err
}
