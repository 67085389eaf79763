package rows

import (
	"context"
	"fmt"
	"slices"
)

// unseen returns the warning about tenants of overrides that were never seen: no usage of them is recorded, they have
// no row, and no consumer has their name; "" if there are none. A nil isConsumer knows no consumers.
func unseen(ctx context.Context, q querier, isConsumer func(name string) bool, tenants ...string) (string, error) {
	tenants = slices.DeleteFunc(tenants, func(name string) bool {
		return name == "" || isConsumer != nil && isConsumer(name)
	})
	if len(tenants) == 0 {
		return "", nil
	}
	type tenant struct{ Name string }
	found, err := collect[tenant](ctx, q, unseenTenants, tenants)
	if err != nil || len(found) == 0 {
		return "", err
	}
	text := "tenant " + found[0].Name
	if more := len(found) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text + " was never seen: no usage of it is recorded, it has no row, and no known consumer has its name; check " +
		"the spelling", nil
}

const unseenTenants = `SELECT DISTINCT t.name FROM unnest($1::text[]) AS t (name)
	WHERE NOT EXISTS (SELECT FROM rate_limiter.tenants WHERE id = t.name)
	AND NOT EXISTS (SELECT FROM rate_limiter.usage_names n WHERE n.name = t.name
		AND (EXISTS (SELECT FROM rate_limiter.usage_minutes WHERE tenant = n.id)
			OR EXISTS (SELECT FROM rate_limiter.usage_hours WHERE tenant = n.id)
			OR EXISTS (SELECT FROM rate_limiter.usage_days WHERE tenant = n.id)))
	ORDER BY t.name`
