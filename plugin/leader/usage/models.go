package usage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/leadership"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// dayModels bounds the models of a tenant on a day. Calls of further ones count as usage.OtherModel.
const dayModels = 256

// models holds the calls of models by day.
type models map[modelKey]*modelRow

type modelKey struct {
	day           int64 // its begin, in seconds since 1970
	tenant, model string
}

// modelRow is a row to add, in the order of the parameters of addModels.
type modelRow struct {
	Day time.Time
	usage.ModelCalls
}

// addBatch adds the calls of a batch to the day of an instant.
func (m models) addBatch(at time.Time, all []usage.ModelCalls) {
	day := at.UTC().Truncate(day)
	for i := range all {
		k := modelKey{day.Unix(), all[i].Tenant, all[i].Model}
		if have := m[k]; have != nil {
			have.Add(&all[i])
		} else {
			m[k] = &modelRow{day, all[i]}
		}
	}
}

// writeModels adds the calls to those of their days.
func (u *unpacking) writeModels(ctx context.Context) error {
	if len(u.models) == 0 {
		return nil
	}
	columns := append(columnsOf(slices.Collect(maps.Values(u.models))), dayModels)
	_, err := u.tx.Exec(ctx, addModels, columns...)
	return leadership.Wrap("add models", err)
}

// addModels adds calls to the days of tenants, each with $8 models at most: the names of models are not among
// usage_names, because upstreams could make up any number of them.
var addModels = func() string {
	sums, sets := "", ""
	for i, name := range [...]string{"calls", "prompt_tokens", "completion_tokens", "micro_usd"} {
		sums += ", " + bounded("sum("+name+")")
		sets += [...]string{"", ", "}[min(i, 1)] + name + " = " + bounded("t."+name+" + excluded."+name)
	}
	return fmt.Sprintf(`WITH given AS (
			SELECT g.day::date AS day, coalesce(t.id, other.id) AS tenant, model, calls, prompt_tokens, completion_tokens,
				micro_usd
			FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
				g (day, name, model, calls, prompt_tokens, completion_tokens, micro_usd)
			JOIN rate_limiter.usage_names other ON other.name = '`+otherName+`'
			LEFT JOIN rate_limiter.usage_names t ON t.name = g.name
		), named AS (
			SELECT g.*, CASE WHEN k.model IS NOT NULL
				OR row_number() OVER (PARTITION BY tenant, day, k.model IS NULL ORDER BY g.model)
					+ (SELECT count(*) FROM rate_limiter.usage_models h WHERE h.tenant = g.tenant AND h.day = g.day) <= $8
				THEN g.model ELSE '`+usage.OtherModel+`' END AS name
			FROM given g LEFT JOIN rate_limiter.usage_models k USING (tenant, day, model)
		)
		INSERT INTO rate_limiter.usage_models AS t
			(tenant, day, model, calls, prompt_tokens, completion_tokens, micro_usd)
		SELECT tenant, day, name%s FROM named GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
		ON CONFLICT (tenant, day, model) DO UPDATE SET %s`, sums, sets)
}()
