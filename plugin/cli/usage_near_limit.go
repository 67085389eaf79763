package cli

import (
	"context"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

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
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			var found answers.NearLimits
			if err := rest.Get(ctx, nearLimitPath, query, &found); err != nil {
				return err
			}
			return c.print(found.Items, func(out *page) { nearLimits.add(out, found.Items...) })
		})
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
	words: "usage notices", args: "[TENANT]", most: 1,
	brief: "list the tenants that have used 50, 80 or 100 % of a quota",
	about: `A quota is a limit of a tenant with a window of an hour or more. ratelimit serve writes a notice when a threshold
is reached, once in a window. EXHAUSTED AT is a forecast at the rate of that time, and - stands for none. LATE says that
the threshold may have been reached more than five minutes before the notice.

  ratelimit usage notices acme --last 30d`,
	define: func(c *call) action {
		query := c.queryFlags(api.QuotaNoticeQuery{}, "tenant")
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			query.Set("tenant", c.arg())
			var found answers.QuotaNotices
			if err := rest.Get(ctx, "/v1/ratelimit/usage/notices", query, &found); err != nil {
				return err
			}
			return c.print(found.Items, func(out *page) { notices.add(out, found.Items...) })
		})
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
