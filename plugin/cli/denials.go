package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

const denialsPath = "/v1/ratelimit/denials"

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
		query := c.queryFlags(struct {
			api.OfTenant
			api.DenialPage
		}{})
		follow := c.flags.Bool("follow", false, "then list what nodes report, until Ctrl-C; the newest is the last")
		requestID := c.requestIDFlag()
		read := c.asks(func(ctx context.Context, rest *answers.Client) error {
			if *requestID != "" {
				return c.showRequest(ctx, rest, *requestID, query)
			}
			var found answers.DenialList
			err := rest.Get(ctx, denialsPath, query, &found)
			if err != nil || *follow {
				return c.followDenials(ctx, rest, query, found.Denials, err)
			}
			return c.print(found.Denials, func(out *page) { denialList.add(out, found.Denials...) })
		})
		c.check(func() error {
			if *follow && *requestID != "" {
				return wrong("use either --follow or --request-id, not both")
			}
			if *follow && c.format != formatTable {
				return wrong("--follow: lists lines as text: leave out --output")
			}
			return nil
		})
		return read
	},
}

var denialList = listing[answers.Denial]{
	"AT|TENANT|COUNT|RESULT|REASON|POLICY|LIMIT|ENDPOINT|USER|ADDRESS|RETRY AFTER",
	func(d answers.Denial) []any {
		result, wait := "denied", ""
		if d.Shadow {
			result = "shadow"
		}
		if d.RetryAfter != nil {
			wait = fmt.Sprintf("%d s", *d.RetryAfter)
		}
		return []any{
			d.At, d.Org, d.Count, result, d.Reason, d.Policy, denialLimit(&d), d.Endpoint, d.User, d.IPHash, wait,
		}
	},
}

// denialLimit returns the quantity of the limit of a denial; "": it is not known.
func denialLimit(d *answers.Denial) string {
	var window spanFlag
	if d.Limit == nil || window.Set(d.Window) != nil {
		return ""
	}
	return perWindow(*d.Limit, int64(window.length/time.Second))
}

// followDenials shows a list, the newest last, and then what is reported, until ctx ends.
func (c *call) followDenials(
	ctx context.Context, rest *answers.Client, query url.Values, list []answers.Denial, err error,
) error {
	var widths grid
	lines := [][]string{denialList.head()}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	last := int64(0)
	for {
		if ctx.Err() != nil {
			return nil // Ctrl-C ends it
		}
		if err != nil {
			return err
		}
		for _, d := range slices.Backward(list) {
			lines = append(lines, denialList.line(d))
			last = max(last, d.ID)
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
			var next answers.DenialList
			query.Set("after", strconv.FormatInt(last, 10))
			err = rest.Get(ctx, denialsPath, query, &next)
			list = next.Denials
		}
	}
}

// requestIDFlag defines --request-id.
func (c *call) requestIDFlag() *string {
	return c.flags.String("request-id", "", "show what denied the request of this `id`, the X-Kong-Request-Id of its "+
		"response, and what would have admitted it")
}

// showRequest shows what denied a request.
func (c *call) showRequest(ctx context.Context, rest *answers.Client, id string, query url.Values) error {
	var found answers.DenialList
	if err := rest.Get(ctx, denialsPath+"/"+answers.PathSegment(id), query, &found); err != nil {
		return err
	}
	return c.print(found.Denials, func(out *page) {
		for i := range found.Denials {
			if i > 0 {
				out.gap()
			}
			new(grid).add(out, aboutDenial(&found.Denials[i]))
		}
	})
}

// aboutDenial returns lines with a title and a text.
func aboutDenial(d *answers.Denial) [][]string {
	when, why, limit, source := timeText(d.At), d.Reason, d.Policy, "config"
	if d.Count > 1 {
		when += fmt.Sprintf(", the last of %d denials; all else is of one of the last", d.Count)
	}
	if d.Shadow {
		why += ", in shadow: the request was admitted"
	}
	if numbers := denialLimit(d); numbers != "" {
		limit += ": " + numbers
	}
	if d.PolicyID != nil || d.Policy == "" {
		source = ""
	}
	lines := [][]string{
		{"WHEN", when},
		{"WHO", labelled("tenant", cmp.Or(d.Org, "(none)"), "tier", d.Tier, "user", d.User, "address", d.IPHash)},
		{"ENDPOINT", d.Endpoint},
		{"LIMIT", labelled("", limit, "scope", d.Scope)},
		{"FROM", labelled("", source, "row", numberText(d.PolicyID), "", d.PolicyFor,
			"rows of version", numberText(d.PolicyVersion), "override", numberText(d.Override),
			"penalty", numberText(d.Penalty))},
		{"LEFT", labelled("", numberText(d.Remaining), "and the request cost", numberText(d.Cost))},
		{"WHY", why},
		{"WOULD ADMIT IT", d.WouldAdmit},
	}
	for _, line := range lines {
		line[1] = cellText(line[1])
	}
	return lines
}

// labelled lists values, each behind its label. It leaves out empty ones.
func labelled(pairs ...string) string {
	var parts []string
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			parts = append(parts, strings.TrimSpace(pair[0]+" "+pair[1]))
		}
	}
	return strings.Join(parts, ", ")
}
