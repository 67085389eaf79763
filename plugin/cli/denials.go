package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/process"
)

// followEvery is how often denials --follow reads.
const followEvery = 2 * time.Second

var denialsCommand = &command{
	words: "denials", brief: "list recent denials, newest first",
	about: `Nodes report a sample of their denials every 5 seconds (denial-recent). Where a tenant is denied often, a line counts
several denials, and has no user where they differ; the reason "others" counts those without a line of their own. With
--request-id it shows what denied one request: when, who, by which limit, what was left, and what would have admitted
it. A line has the ids of 32 requests at most.
Denials are kept for at most 7 days, the last 5000 lines of a tenant and 200000 in all. ratelimit usage has the exact
numbers.

  ratelimit denials --tenant acme --since 1h
  ratelimit denials --policy daily --follow
  ratelimit denials --request-id 23362be3186b8717e61304664ec43cb1`,
	define: func(c *call) action {
		f := rows.DenialFilter{Max: 100}
		var follow bool
		c.flags.StringVar(&f.Tenant, "tenant", "", "only denials of this `tenant`")
		c.flags.StringVar(&f.Policy, "policy", "", "only denials by the policies of this `name`")
		c.flags.StringVar(&f.Endpoint, "endpoint", "", "only denials of this `endpoint`: a policy's pattern, "+
			"or a route's name")
		since := pastFlag{now: c.now}
		c.flags.Var(&since, "since", "only denials since this `time`: RFC 3339, or a duration ago such as 2h or 7d")
		c.flags.Func("limit", "list at most this `number` of lines (default 100)",
			func(text string) error { return process.ParseInt(text, 1, &f.Max) })
		c.flags.BoolVar(&follow, "follow", false, "then list what nodes report, until Ctrl-C; the newest is the last")
		requestID := c.requestIDFlag()
		read := c.reads(func(ctx context.Context, s *rows.DB) error {
			f.Since, f.RequestID = since.at, *requestID
			if f.RequestID != "" {
				return c.showRequest(ctx, s, f)
			}
			list, err := s.Denials(ctx, f)
			if err != nil || follow {
				return c.followDenials(ctx, s, f, list, err)
			}
			return c.print(answered(list), func(out *page) { denialList.add(out, list...) })
		})
		c.check(func() error {
			if follow && *requestID != "" {
				return wrong("use either --follow or --request-id, not both")
			}
			if follow && c.format != formatTable {
				return wrong("--follow: lists lines as text: leave out --output")
			}
			return nil
		})
		return read
	},
}

var denialList = listing[rows.RecentDenial]{
	"AT|TENANT|COUNT|RESULT|REASON|POLICY|LIMIT|ENDPOINT|USER|ADDRESS|RETRY AFTER",
	func(d rows.RecentDenial) []any {
		result, limit, wait := "denied", "", ""
		if d.Shadow {
			result = "shadow"
		}
		if d.Limit != nil && d.WindowSize != nil {
			limit = perWindow(*d.Limit, *d.WindowSize)
		}
		if d.RetryAfter != nil {
			wait = fmt.Sprintf("%d s", *d.RetryAfter)
		}
		return []any{d.At, d.Tenant, d.Count, result, d.Reason, d.Policy, limit, d.Endpoint, d.User, d.IP, wait}
	},
}

// followDenials shows a list, the newest last, and then what is reported, until ctx ends.
func (c *call) followDenials(
	ctx context.Context, s *rows.DB, f rows.DenialFilter, list []rows.RecentDenial, err error,
) error {
	var widths grid
	lines := [][]string{denialList.head()}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if ctx.Err() != nil {
			return nil // Ctrl-C ends it
		}
		if err != nil {
			return err
		}
		for _, d := range slices.Backward(list) {
			lines = append(lines, denialList.line(d))
			f.AfterID = max(f.AfterID, d.ID)
		}
		var out page
		widths.add(&out, lines)
		if err := out.write(c.stdout); err != nil {
			return err
		}
		lines = lines[:0]
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			list, err = s.Denials(ctx, f)
		}
	}
}
