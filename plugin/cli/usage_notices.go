package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

var usageNoticesCommand = &command{
	words: "usage notices", args: "[TENANT]", most: 1,
	brief: "list the tenants that have used 50, 80 or 100 % of a quota",
	about: `A quota is a limit of a tenant with a window of an hour or more. ratelimit serve writes a notice when a threshold
is reached, once in a window. EXHAUSTED AT is a forecast at the rate of that time, and - stands for none. LATE says that
the threshold may have been reached more than five minutes before the notice.

  ratelimit usage notices acme --last 30d`,
	define: func(c *call) action {
		last, most := spanFlag{length: 24 * time.Hour}, 100
		c.flags.Var(&last, "last", "list the notices of this `duration` until now (default 24h)")
		c.flags.Func("limit", "list at most this `number` of notices (default 100)", func(text string) error {
			return process.ParseInt(text, 1, &most)
		})
		return c.reads(func(ctx context.Context, s *rows.DB) error {
			return notices.show(c, s.QuotaNotices(ctx, c.arg(), c.now().Add(-last.length), most))
		})
	},
}

// notices shows notices of quotas.
var notices = listing[rows.QuotaNotice]{
	"NOTICED AT|TENANT|POLICY|ENDPOINT|REACHED|USED|LIMIT|WINDOW ENDS|EXHAUSTED AT|LATE",
	func(n rows.QuotaNotice) []any {
		exhausted := "-"
		if n.ExhaustedAt != nil {
			exhausted = timeText(*n.ExhaustedAt)
		}
		return []any{
			n.NoticedAt, n.Tenant, policyCell(n.Policy, n.PolicyID, n.Tier), n.Endpoint,
			red(fmt.Sprint(n.Threshold, " %"), n.Threshold == 100), n.Used, n.Limit, n.WindowEnd, exhausted, n.Late,
		}
	},
}
