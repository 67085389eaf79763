package rows

import "context"

// UsageModel is what a tenant's calls of a model used on a day.
type UsageModel struct {
	Day              string `json:"day"               doc:"The day of UTC." example:"2026-11-30"`
	Tenant           string `json:"org_id"            doc:"Empty: calls without an org."`
	Model            string `json:"model"             doc:"The model that answered, as the answer names it. Empty: it named none. (other): the models of an org beyond 256 on a day." example:"gpt-4o"`
	Calls            int64  `json:"calls"             doc:"Answers that were measured."`
	PromptTokens     int64  `json:"prompt_tokens"`
	CompletionTokens int64  `json:"completion_tokens"`
	USD              string `json:"usd"               doc:"The price of the calls in US dollars: a decimal with 2 to 6 places. A call without a price adds 0." example:"0.0042"`
	Closed           bool   `json:"closed"            doc:"The items of the day do not change any more."`
}

// usageModels begins a statement for the models of days from $1 until $2.
var usageModels = `SELECT to_char(day, 'YYYY-MM-DD') AS day, n.name AS tenant, model, calls, prompt_tokens,
		completion_tokens, ` + usdOf("micro_usd") + ` AS usd, day < (days_until AT TIME ZONE 'UTC')::date AS closed
	FROM rate_limiter.usage_models m JOIN rate_limiter.usage_names n ON n.id = tenant CROSS JOIN rate_limiter.usage_state
	WHERE day >= $1::date AND day < $2::date AND `

// usdOf returns an expression for millionths of a US dollar as a decimal of dollars with 2 to 6 places.
func usdOf(column string) string {
	return "round(" + column + " * 0.000001, greatest(min_scale(" + column + " * 0.000001), 2))::text"
}

// UsageExportModels returns what every tenant's calls used by day, ordered by day, tenant and model. q.After has a
// tenant and a model. q.Policy and q.ByPolicy do not matter.
func (s *DB) UsageExportModels(ctx context.Context, q UsageExportQuery) ([]UsageModel, error) {
	return exportDays[UsageModel](ctx, s, q, usageModels+`($3 OR day < (days_until AT TIME ZONE 'UTC')::date)
			AND ($4::text[] IS NULL OR ARRAY[n.name COLLATE "C", model] > $4)
		ORDER BY n.name COLLATE "C", model LIMIT $5`)
}

// exportDays reads days one by one until there are q.Max rows. The parameters of sql are the begin and the end of a
// day, q.Open, q.After and what is left of q.Max, then others.
func exportDays[T any](ctx context.Context, s *DB, q UsageExportQuery, sql string, others ...any) ([]T, error) {
	found := []T{}
	for day := q.From; day.Before(q.To) && len(found) < q.Max; day = day.AddDate(0, 0, 1) {
		args := append([]any{day, day.AddDate(0, 0, 1), q.Open, q.After, q.Max - len(found)}, others...)
		rows, err := readAll[T](ctx, s.pool, "export usage", sql, args...)
		if err != nil {
			return nil, err
		}
		found, q.After = append(found, rows...), nil
	}
	return found, nil
}
