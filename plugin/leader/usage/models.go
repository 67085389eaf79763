package usage

import (
	"context"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// dayModels bounds the models of a tenant on a day: upstreams name them, and could make up any number. Calls of further
// ones count as otherName.
const dayModels = 256

// modelRow has calls to add to the day of an instant, in the order of the parameters of addModels.
type modelRow struct {
	At time.Time
	usage.ModelCalls
}

// writeModels adds the calls of models to those of their days.
func (u *unpacking) writeModels(ctx context.Context) error {
	if len(u.models) == 0 {
		return nil
	}
	_, err := u.tx.Exec(ctx, addModels, append(columnsOf(u.models), dayModels)...)
	return leadership.Wrap("add models", err)
}

// addModels adds calls to the days of tenants, each with $8 models at most. The names of models are not among
// usage_names, which are bounded for all tenants together.
var addModels = func() string {
	var sums, sets []string
	for _, name := range [...]string{"calls", "prompt_tokens", "completion_tokens", "micro_usd"} {
		sums = append(sums, bounded("sum("+name+")"))
		sets = append(sets, name+" = "+bounded("t."+name+" + excluded."+name))
	}
	return `WITH given AS (
			SELECT at::date AS day, coalesce(t.id, other.id) AS tenant, model, calls, prompt_tokens, completion_tokens,
				micro_usd
			FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
				g (at, name, model, calls, prompt_tokens, completion_tokens, micro_usd)
			JOIN rate_limiter.usage_names other ON other.name = '` + otherName + `'
			LEFT JOIN rate_limiter.usage_names t ON t.name = g.name
		), named AS (
			SELECT g.*, CASE WHEN k.model IS NOT NULL
				OR dense_rank() OVER (PARTITION BY tenant, day, k.model IS NULL ORDER BY g.model)
					+ (SELECT count(*) FROM rate_limiter.usage_models h WHERE h.tenant = g.tenant AND h.day = g.day) <= $8
				THEN g.model ELSE '` + otherName + `' END AS name
			FROM given g LEFT JOIN rate_limiter.usage_models k USING (tenant, day, model)
		)
		INSERT INTO rate_limiter.usage_models AS t
			(tenant, day, model, calls, prompt_tokens, completion_tokens, micro_usd)
		SELECT tenant, day, name, ` + strings.Join(sums, ", ") + ` FROM named GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
		ON CONFLICT (tenant, day, model) DO UPDATE SET ` + strings.Join(sets, ", ")
}()
