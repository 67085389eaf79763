package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var usageCommands = []*command{
	usageShowCommand, usageTopCommand, usageNearLimitCommand, usageNoticesCommand, usageExportCommand,
}

var usageShowCommand = &command{
	words: "usage show", args: "TENANT", brief: "show what a tenant has used by minute, hour or day", least: 1, most: 1,
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
			var err error
			if q.Step, err = stepOf(step, last.length); err != nil {
				return err
			}
			q.ByEndpoint, q.ByPolicy, err = groupsOf(by)
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

// groupsOf returns the groups that --by names.
func groupsOf(by string) (endpoint, policy bool, err error) {
	for group := range strings.SplitSeq(by, ",") {
		switch group {
		case "endpoint":
			endpoint = true
		case "policy":
			policy = true
		case "":
		default:
			return false, false, wrong("--by: %q: must be endpoint, policy or endpoint,policy", group)
		}
	}
	return endpoint, policy, nil
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
