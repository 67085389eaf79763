package cli

import (
	"context"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var usageTopCommand = &command{
	words: "usage top", brief: "list the tenants that used most",
	about: `It ranks tenants by the requests that all nodes have reported, without the last seconds. Without --policy, the
cost is that of all policies together: a request counts once for each. Tenants without any are not listed, and - stands
for requests without a tenant.

It sums up minutes for at most 2 hours, hours for at most 2 days, and days beyond: the times are extended to whole ones
of these in UTC. ratelimit top refreshes it.

  ratelimit usage top --by denied --last 7d
  ratelimit usage top --by cost --policy tokens --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z`,
	define: func(c *call) action {
		query := c.queryFlags(api.UsageTopQuery{})
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			var found rows.UsageTop
			if err := rest.Get(ctx, usageTopPath, query, &found); err != nil {
				return err
			}
			return c.print(found, func(out *page) { usageTopPage(out, &found) })
		})
	},
}

// usageTopPage adds a ranking.
func usageTopPage(out *page, found *rows.UsageTop) {
	if len(found.Items) == 0 {
		out.line("no usage from %s to %s", timeText(found.From), timeText(found.To))
		return
	}
	out.line("most %s from %s to %s", found.By, timeText(found.From), timeText(found.To))
	out.gap()
	title := "TENANT|ADMITTED|SOFT|DENIED|SHADOW DENIED|COST"
	late := found.Step == "1d"
	if late {
		title += "|LATE"
	}
	columns(out, title, found.Items, func(r rows.OrgRanking) []any {
		cells := []any{r.Tenant, r.Admitted, r.Soft, red(r.Denied, r.Denied > 0), r.ShadowDenied, r.Cost}
		if late {
			cells = append(cells, r.Late)
		}
		return cells
	})
}
