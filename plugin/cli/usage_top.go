package cli

import (
	"context"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

var usageTopCommand = &command{
	words: "usage top", brief: "list the tenants that used most",
	about: `It ranks tenants by the requests that all nodes have reported, without the last seconds. Without --policy, the
cost is that of all policies together: a request counts once for each. Tenants without any are not listed, and - stands
for requests without a tenant.

It sums up minutes for at most 2 hours, hours for at most 2 days, and days beyond: the times are extended to whole ones
of these in UTC. ratelimit top shows what nodes do now.

  ratelimit usage top --by denied --last 7d
  ratelimit usage top --by cost --policy tokens --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z`,
	define: func(c *call) action {
		last := spanFlag{length: 24 * time.Hour}
		from, to := pastFlag{now: c.now}, pastFlag{now: c.now}
		q := rows.UsageTopQuery{By: rows.UsageRankings[0], Max: 20}
		c.flags.StringVar(&q.By, "by", q.By, "the `column` to rank by: admitted, denied or cost (default admitted)")
		c.flags.Var(&last, "last", "count this `duration` until --to (default 24h)")
		c.flags.Var(&from, "from",
			"instead of --last, count since this `time`: RFC 3339, or a duration ago such as 2h or 30d")
		c.flags.Var(&to, "to", "count until this `time`, in the same formats as --from (default now)")
		c.flags.Func("limit", "list at most this `number` of tenants (default 20)", func(text string) error {
			return process.ParseInt(text, 1, &q.Max)
		})
		c.flags.StringVar(&q.Policy, "policy", "", "count what this `policy` did, instead of the requests")
		c.complete("by", rows.UsageRankings...)
		c.check(func() error {
			switch {
			case !slices.Contains(rows.UsageRankings, q.By):
				return wrong("--by: %q: must be admitted, denied or cost", q.By)
			case c.given("last") && c.given("from"):
				return wrong("use either --last or --from, not both")
			}
			return nil
		})
		return c.reads(func(ctx context.Context, s *rows.DB) error {
			q.To, q.From = c.now(), from.at
			if c.given("to") {
				q.To = to.at
			}
			if !c.given("from") {
				q.From = q.To.Add(-last.length)
			}
			found, err := s.UsageTop(ctx, q, c.now())
			if err != nil {
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
