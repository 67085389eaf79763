package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/url"
	"strconv"
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
and days beyond. Steps are cut at UTC; steps without requests are not listed. With --by model it shows what calls of
language models used by day: tokens, and dollars by the prices in force.

With --policy it shows what that policy did: the tokens that it charged, and the least that was left of its limit.
With --period too it shows that for the current or the previous period of the policy, such as a month of the tenant's
time zone, in one row: then it needs the plugin's config (--config, or --server, which has its own).

  ratelimit usage show acme --last 7d
  ratelimit usage show acme --by policy --step 1d --last 30d
  ratelimit usage show acme --by model --last 30d
  ratelimit usage show acme --policy monthly --period previous --config kong.yml`,
	define: func(c *call) action {
		last, step, by, query := 24*time.Hour, "", "", url.Values{}
		c.flags.Func("last", "show this `duration` until now (default 24h)", reads(parseSpan, &last))
		c.flags.StringVar(&step, "step", "", "the `length` of a row: 1m, 1h or 1d")
		c.flags.Func("endpoint", "only requests of this `endpoint`: a pattern or the name of a route",
			sets(query, "endpoint"))
		c.flags.Func("policy", "show what this `policy` did, instead of the requests", sets(query, "policy"))
		c.flags.StringVar(&by, "by", "", "show a row for each `group`: endpoint, policy, endpoint,policy or model")
		c.flags.Func("period", "show this `period` of the policy in one row: current or previous", sets(query, "period"))
		c.periodConfigFlag(query)
		c.check(func() error {
			if err := oneOf(by, []string{"", "endpoint", "policy", "endpoint,policy", "model"}); err != nil {
				return wrong("--by: %q: must be endpoint, policy, endpoint,policy or model", by)
			}
			if by != "" {
				query.Set("group_by", strings.ReplaceAll(by, ",", "+"))
			}
			if period := query.Get("period"); period != "" {
				switch {
				case oneOf(period, []string{"current", "previous"}) != nil:
					return wrong("--period: %q: must be current or previous", period)
				case !query.Has("policy"):
					return wrong("--period: name the policy by --policy")
				case c.given("last") || step != "":
					return wrong("--period takes the place of --last and --step: leave them out")
				}
				return nil
			}
			now := c.now()
			query.Set("from", now.Add(-last).Format(time.RFC3339Nano))
			query.Set("to", now.Format(time.RFC3339Nano))
			if by == "model" {
				step = cmp.Or(step, "1d")
			}
			length, err := stepOf(step, last)
			query.Set("step", length.Name)
			return err
		})
		return shows[rows.UsageHistory](c, "/v1/orgs/{}/ratelimit/usage/history", query)
	},
}

// periodConfigFlag defines the flags of the config that a query with a period needs.
func (c *call) periodConfigFlag(query url.Values) {
	f := c.configFlag()
	c.flags.Lookup("config").Usage += "; only for --period without --server"
	c.configure = func(ctx context.Context, o *api.Options) error {
		if !query.Has("period") {
			return nil
		}
		return c.configurePlan(ctx, f, o)
	}
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

var usageTopCommand = &command{
	words: "usage top", brief: "list the tenants that used most",
	about: `It ranks tenants by the requests that all nodes have reported, without the last seconds. Without --policy, the
cost is a sum of all policies, of tokens and of millionths of a dollar alike: name a policy to rank by cost. Tenants
without any are not listed, and - stands for requests without a tenant.

It sums up minutes for at most 2 hours, hours for at most 2 days, and days beyond: the times are extended to whole ones
of these in UTC. ratelimit top refreshes it.

  ratelimit usage top --by denied --last 7d
  ratelimit usage top --by cost --policy tokens --from 2026-11-01T00:00:00Z --to 2026-12-01T00:00:00Z`,
	define: func(c *call) action {
		return shows[rows.UsageTop](c, usageTopPath, c.queryFlags(api.UsageTopQuery{}))
	},
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
		return showsItems[answers.NearLimit](c, nearLimitPath, query)
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
		return showsItems[rows.QuotaNotice](c, "/v1/ratelimit/usage/notices", query)
	},
}

var usageExportCommand = &command{
	words: "usage export", brief: "write what every tenant used in a month, by endpoint and day",
	about: `It writes a row for each day of UTC, tenant and endpoint, ordered by these. A day is closed an hour or more
after its end, when all nodes have reported it, and then its rows do not change. Days that are not closed are left out,
unless --open is given; standard error names them. Days are kept for 3 years.

Without --policy or --by a row counts each request once, and has no cost. The rows of policies have the tokens that each
policy charged, and dollars if its unit is usd; a request is in those of several policies. With --by model a row is what
a tenant's calls of a language model used on a day: tokens, and dollars by the prices in force.

With --policy and --period instead of --month a row is what the policy did for a tenant at an endpoint in its current or
previous period, such as a month of the tenant's time zone. That needs the plugin's config (--config, or --server, which
has its own).

Every cell of CSV is quoted. A text that a spreadsheet could take for a formula gets an apostrophe, also after a comma,
semicolon, bar, quote, tab or line break in it. Characters that are not printable are replaced in CSV; JSON has them.

  ratelimit usage export --month 2026-11 --format csv > november.csv
  ratelimit usage export --month 2026-11 --policy tokens --format json
  ratelimit usage export --month 2026-11 --by model
  ratelimit usage export --policy monthly --period previous --config kong.yml`,
	define: func(c *call) action {
		query := c.queryFlags(api.UsageExportQuery{}, "limit")
		c.periodConfigFlag(query)
		format := formatCSV
		c.choiceFlag(&format, "format", "", "the `format`", formatCSV, formatJSON)
		c.check(func() error {
			switch month, err := time.Parse("2006-01", query.Get("month")); {
			case c.given("period") && (!c.given("policy") || c.given("month") || c.given("by") || c.given("open")):
				return wrong("--period needs --policy, and takes the place of --month, --open and --by")
			case c.given("period"):
			case !c.given("month"):
				return wrong("--month: must be given, such as 2026-11")
			case err != nil || month.Year() < 1:
				return wrong("--month: %q: must be a month such as 2026-11", query.Get("month"))
			case query.Has("by") && query.Has("policy"):
				return wrong("use either --policy or --by, not both")
			}
			query.Set("limit", "10000")
			return nil
		})
		c.doorFlag()
		return func(ctx context.Context) error {
			return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
				return c.exportUsage(ctx, rest, query, format)
			})
		}
	},
}

// exportUsage writes the rows of a query page by page.
func (c *call) exportUsage(ctx context.Context, rest *answers.Client, query url.Values, format string) (err error) {
	var closed time.Time
	list := exportedUsage(ctx, rest, query, &closed)
	columns := []string{
		"day", "org_id", "endpoint", "policy", "admitted", "soft", "denied", "shadow_denied", "late", "cost", "closed",
		"policy_id", "tier", "cost_usd",
	}
	switch {
	case query.Get("by") == "model":
		columns = []string{"day", "org_id", "model", "calls", "prompt_tokens", "completion_tokens", "usd", "closed"}
	case query.Has("period"):
		columns = append(columns, "period", "time_zone", "from", "to", "inexact")
	}
	if format == formatJSON {
		err = showJSON(c.stdout, list)
	} else {
		err = showCSV(c.stdout, list, columns...)
	}
	if err != nil || query.Has("period") {
		return err
	}
	first, _ := time.Parse("2006-01", query.Get("month")) // which is checked
	month := first.AddDate(0, 1, 0)
	if closed.After(first) {
		first = closed
	}
	if first.Before(month) {
		effect := "left out: add --open to write them"
		if open, _ := strconv.ParseBool(query.Get("open")); open {
			effect = "written with closed=false: they may still change"
		}
		c.warn("the days from %s until %s are not closed, and %s", first.Format(time.DateOnly),
			month.AddDate(0, 0, -1).Format(time.DateOnly), effect)
	}
	return nil
}

// exportedUsage yields the items or models of a query, and sets the midnight before which days were closed then.
func exportedUsage(
	ctx context.Context, rest *answers.Client, query url.Values, closed *time.Time,
) iter.Seq2[any, error] {
	return func(yield func(any, error) bool) {
		for more := true; more; more = query.Get("cursor") != "" {
			var page answers.UsageExport
			if err := rest.Get(ctx, "/v1/ratelimit/usage/export", query, &page); err != nil {
				yield(nil, err)
				return
			}
			if closed.IsZero() {
				*closed = page.ClosedUntil
			}
			for _, row := range page.Items {
				if !yield(row, nil) {
					return
				}
			}
			for _, row := range page.Models {
				if !yield(row, nil) {
					return
				}
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}
