package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var usageCommands = []*command{
	usageShowCommand, usageTopCommand, usageNearLimitCommand, usageNoticesCommand, usageExportCommand,
}

var usageShowCommand = &command{
	words: "usage show", args: "TENANT", brief: "show what a tenant has used by minute, hour or day",
	about: `It shows the requests that all nodes have reported, without the last seconds. Minutes are kept for 2 days,
hours for 60 days and days for 3 years. Without --step, the step follows from --last: minutes up to 2h, hours up to 14d,
and days beyond. Steps are cut at UTC; steps without requests are not listed.

With --policy it shows what that policy did: the tokens that it charged, and the least that was left of its limit.

  ratelimit usage show acme --last 7d
  ratelimit usage show acme --by policy --step 1d --last 30d`,
	define: func(c *call) action {
		last, step, by := spanFlag{length: 24 * time.Hour}, "", ""
		q := rows.UsageQuery{}
		c.flags.Var(&last, "last", "show this `duration` until now (default 24h)")
		c.flags.StringVar(&step, "step", "", "the `length` of a row: 1m, 1h or 1d")
		endpoint := c.flags.String("endpoint", "", "only requests of this `endpoint`: a pattern or the name of a route")
		c.flags.StringVar(&q.Policy, "policy", "", "show what this `policy` did, instead of the requests")
		c.flags.StringVar(&by, "by", "", "show a row for each `group`: endpoint, policy or endpoint,policy")
		c.check(func() error {
			if err := oneOf(by, []string{"", "endpoint", "policy", "endpoint,policy"}); err != nil {
				return wrong("--by: %q: must be endpoint, policy or endpoint,policy", by)
			}
			q.ByEndpoint, q.ByPolicy = strings.Contains(by, "endpoint"), strings.Contains(by, "policy")
			var err error
			q.Step, err = stepOf(step, last.length)
			return err
		})
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			now := c.now()
			q.Tenant = c.arg()
			query := url.Values{
				"from": {now.Add(-last.length).Format(time.RFC3339Nano)}, "to": {now.Format(time.RFC3339Nano)},
				"step": {q.Step.Name}, "endpoint": {*endpoint}, "policy": {q.Policy},
			}
			if by != "" {
				query.Set("group_by", strings.ReplaceAll(by, ",", "+"))
			}
			var found rows.UsageHistory
			if err := rest.Get(ctx, c.path("/v1/orgs/{}/ratelimit/usage/history"), query, &found); err != nil {
				return err
			}
			return c.print(found, func(out *page) { usagePage(out, &q, &found) })
		})
	},
}

// stepOf returns the step of a name; without one, the step that suits a duration.
func stepOf(name string, last time.Duration) (rows.UsageStep, error) {
	if name == "" {
		switch {
		case last <= 2*time.Hour:
			name = "1m"
		case last <= 14*24*time.Hour:
			name = "1h"
		default:
			name = "1d"
		}
	}
	step, err := rows.UsageStepOf(name)
	if err != nil {
		return step, wrong("--step: %q: must be 1m, 1h or 1d", name)
	}
	return step, nil
}

// usagePage adds a usage history: a line that shows its course, and a table.
func usagePage(out *page, q *rows.UsageQuery, found *rows.UsageHistory) {
	if len(found.Items) == 0 {
		out.line("no usage of %s from %s to %s", q.Tenant, timeText(found.From), timeText(found.To))
		return
	}
	if line := sparkline(q, found); line != "" {
		out.line("requests per %s from %s to %s", q.Step.Name, timeText(found.From), timeText(found.To))
		out.line("%s", line)
		out.gap()
	}
	title := "AT"
	if q.ByEndpoint {
		title += "|ENDPOINT"
	}
	ofPolicy := q.ByPolicy || q.Policy != ""
	if ofPolicy {
		title += "|POLICY"
	}
	title += "|ADMITTED|SOFT|DENIED|SHADOW DENIED"
	if q.Step.Name == "1d" {
		title += "|LATE"
	}
	if ofPolicy {
		title += "|COST|LEAST LEFT"
	}
	columns(out, title, found.Items, func(r rows.UsageRow) []any {
		cells := []any{r.At}
		if r.Endpoint != nil {
			cells = append(cells, *r.Endpoint)
		}
		if r.Policy != nil {
			cells = append(cells, policyCell(*r.Policy, r.PolicyID, r.Tier))
		}
		cells = append(cells, r.Admitted, r.Soft, red(r.Denied, r.Denied > 0), r.ShadowDenied)
		if q.Step.Name == "1d" {
			cells = append(cells, r.Late)
		}
		if ofPolicy {
			cells = append(cells, numberText(r.Cost), numberText(r.Remaining))
		}
		return cells
	})
}

// numberText returns a number in a table, or "" for none.
func numberText(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// maxSparks bounds the characters of a sparkline.
const maxSparks = 200

// sparkline returns the requests of all steps as a line of bars. It is empty if there are too many steps, or several
// rows for a step.
func sparkline(q *rows.UsageQuery, found *rows.UsageHistory) string {
	step := q.Step.Span
	requests := make([]float64, found.To.Sub(found.From)/step)
	if len(requests) > maxSparks || len(requests) < 2 {
		return ""
	}
	for _, r := range found.Items {
		i := r.At.Sub(found.From) / step
		if q.ByEndpoint || q.ByPolicy || i < 0 || int(i) >= len(requests) {
			return ""
		}
		requests[i] += float64(r.Admitted + r.Denied)
	}
	return barLine(requests)
}

// barLine returns values as a line of bars, and a blank for each 0.
func barLine(values []float64) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	line, most := make([]rune, len(values)), slices.Max(append([]float64{0}, values...))
	for i, n := range values {
		line[i] = ' '
		if n > 0 {
			line[i] = bars[int(n/most*float64(len(bars)-1))]
		}
	}
	return string(line)
}

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
		return shows(c, usageTopPath, c.queryFlags(api.UsageTopQuery{}), usageTopPage)
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

var usageNearLimitCommand = &command{
	words: "usage near-limit", brief: "list the tenants that have used most of a limit lately",
	about: `It compares the least that was left in the last minutes, as all nodes have reported it, with the limits that
the config and the database have now. It reads all policies and overrides, as a node does. Limits that tenants share,
and tenants that are banned or exempt now, are not listed.

  ratelimit usage near-limit --config kong.yml --above 0.9 --last 1h`,
	define: func(c *call) action {
		f := c.configFlag()
		c.flags.Lookup("plugin-route").Usage = routeUsage
		c.flags.Lookup("config").Usage += "; not with --server, which has its own"
		query := c.queryFlags(api.NearLimitQuery{})
		c.configure = func(ctx context.Context, o *api.Options) error { return c.configurePlan(ctx, f, o) }
		return showsItems(c, nearLimitPath, query, nearLimits)
	},
}

// configurePlan adds the plan of a config with all rows beside it, and the tiers that are known. It warns of rows that
// do not compile.
func (c *call) configurePlan(ctx context.Context, f *configFlags, o *api.Options) error {
	config, _, err := c.load(f)
	if err != nil {
		return err
	}
	plan, err := resolve.ForCallers(config.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", config.Where, err)
	}
	loaded, err := policysync.Load(ctx, c.pool)
	if err != nil {
		return err
	}
	snapshot, faults := policy.NewSnapshot(loaded.Rows, nil)
	for _, fault := range faults {
		c.warn("a row is left out: %s", fault)
	}
	o.Tiers = api.NewTiers(o.Rows, plan.Namespace(), config.Consumers, config.Changed)
	o.Decider = new(admit.Decider)
	o.Decider.Policies.Store(plan.With(snapshot))
	return o.Tiers.Refresh(ctx, "")
}

// nearLimits shows limits of which much was used.
var nearLimits = listing[answers.NearLimit]{
	"TENANT|POLICY|ENDPOINT|SCOPE|MODE|USED|LEAST LEFT|LIMIT|LAST USED",
	func(n answers.NearLimit) []any {
		const full = 1
		return []any{
			n.Org, policyCell(n.Policy, n.Row, n.Tier), n.Endpoint, n.Scope, n.Mode,
			red(fmt.Sprintf("%.1f %%", n.Fraction*100), n.Fraction >= full), n.Remaining, n.Limit, n.At,
		}
	},
}

// policyCell returns the name of a policy and what tells it from others of its name: its row, or the tier whose list
// has it.
func policyCell(name string, row int64, tier string) string {
	switch {
	case row != 0:
		return fmt.Sprintf("%s (policy %d)", name, row)
	case tier != "":
		return fmt.Sprintf("%s (tier %s)", name, tier)
	}
	return name
}

var usageNoticesCommand = &command{
	words: "usage notices", args: "[TENANT]", brief: "list the tenants that have used 50, 80 or 100 % of a quota",
	about: `A quota is a limit of a tenant with a window of an hour or more. ratelimit serve writes a notice when a threshold
is reached, once in a window. EXHAUSTED AT is a forecast at the rate of that time, and - stands for none. LATE says that
the threshold may have been reached more than five minutes before the notice.

  ratelimit usage notices acme --last 30d`,
	define: func(c *call) action {
		query := c.queryFlags(api.QuotaNoticeQuery{}, "tenant")
		c.check(func() error {
			query.Set("tenant", c.arg())
			return nil
		})
		return showsItems(c, "/v1/ratelimit/usage/notices", query, notices)
	},
}

// notices shows notices of quotas.
var notices = listing[rows.QuotaNotice]{
	"NOTICED AT|TENANT|POLICY|ENDPOINT|REACHED|USED|LIMIT|WINDOW ENDS|EXHAUSTED AT|LATE",
	func(n rows.QuotaNotice) []any {
		return []any{
			n.NoticedAt, n.Tenant, policyCell(n.Policy, n.PolicyID, n.Tier), n.Endpoint,
			red(fmt.Sprint(n.Threshold, " %"), n.Threshold == 100), n.Used, n.Limit, n.WindowEnd, timeCell(n.ExhaustedAt), n.Late,
		}
	},
}
