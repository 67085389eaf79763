package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/policysync"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
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
		last, above, most := spanFlag{length: 10 * time.Minute}, 0.8, 100
		c.flags.Var(&last, "last", "look at this `duration` until now, at most 24h (default 10m)")
		c.flags.Func("above", "list limits of which at least this `fraction` was used, from 0 to 1 (default 0.8)",
			func(text string) (err error) {
				above, err = parseFraction(text)
				return err
			})
		c.flags.Func("limit", "list at most this `number` of limits (default 100)", func(text string) error {
			return process.ParseInt(text, 1, &most)
		})
		c.check(func() error {
			if last.length > 24*time.Hour {
				return wrong("--last: must be at most 24h")
			}
			return nil
		})
		return c.reads(func(ctx context.Context, s *rows.DB) error {
			plan, tiers, faults, err := c.wholePlan(ctx, f, s)
			if err != nil {
				return err
			}
			for _, fault := range faults {
				c.warn("a row is left out: %s", fault)
			}
			now := limit.Micros(c.now().UnixMicro())
			found, err := api.FindNearLimits(ctx, plan, tiers, s.UsageLeft(ctx, last.length), now, above, most)
			if err != nil {
				return err
			}
			return c.print(found, func(out *page) { columns(out, nearLimits.title, found, nearLimits.row) })
		})
	},
}

// parseFraction reads a fraction, as ?above of the REST API.
func parseFraction(text string) (float64, error) {
	fraction, err := strconv.ParseFloat(text, 64)
	if err != nil || !(fraction >= 0 && fraction <= 1) { // NaN is neither
		return 0, errors.New("must be a fraction from 0 to 1, as in the REST API: 0.8 for 80 %")
	}
	return fraction, nil
}

// wholePlan returns the plan of a config with all rows beside it, and the tiers that are known. The faults are those of
// rows that do not compile.
func (c *call) wholePlan(
	ctx context.Context, f *configFlags, s *rows.DB,
) (*resolve.Plan, *api.Tiers, []policy.Fault, error) {
	config, _, err := c.load(f)
	if err != nil {
		return nil, nil, nil, err
	}
	plan, err := resolve.ForCallers(config.Config)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", config.Where, err)
	}
	loaded, err := policysync.Load(ctx, c.pool)
	if err != nil {
		return nil, nil, nil, err
	}
	tiers := api.NewTiers(s, plan.Namespace(), config.Consumers, config.Changed)
	snapshot, faults := policy.NewSnapshot(loaded.Rows, nil)
	return plan.With(snapshot), tiers, faults, tiers.Refresh(ctx, "")
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
