package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
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
			return c.print(found.Denials, nil)
		})
		c.wrongIf(func() bool { return *follow && *requestID != "" }, "use either --follow or --request-id, not both")
		c.wrongIf(func() bool { return *follow && c.format != formatTable },
			"--follow: lists lines as text: leave out --output")
		return read
	},
}

// followDenials shows a list, the newest last, and then what is reported, until ctx ends.
func (c *call) followDenials(
	ctx context.Context, rest *answers.Client, query url.Values, list []answers.Denial, err error,
) error {
	var shown table
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
		var lines []any
		for _, d := range slices.Backward(list) {
			line, _ := shownTree(d) // which was JSON
			lines = append(lines, line)
			last = max(last, d.ID)
		}
		var out page
		shown.add(&out, lines)
		if err := out.write(c.stdout); err != nil {
			return err
		}
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

func (c *call) requestIDFlag() *string {
	return c.flags.String("request-id", "", "show what denied the request of this `id`, the X-Kong-Request-Id of its "+
		"response, and what would have admitted it")
}

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
			out.show(found.Denials[i])
		}
	})
}

const abusePath = "/v1/orgs/{}/ratelimit/abuse"

var abuseCommands = []*command{
	{
		words: "abuse list", brief: "list the tenants on the ladder of abuse detection",
		about: `Abuse detection runs in the ratelimit serve that leads. In mode shadow the steps have no effect. Steps are
warn, half and tenth of each limit, ban_5m and ban_1h.

  ratelimit abuse list --step warn`,
		define: func(c *call) action {
			query := c.queryFlags(rows.AbuseFilter{})
			return c.asks(func(ctx context.Context, rest *answers.Client) error {
				return showRows(c, answers.Each[rows.AbuseState](ctx, rest, "/v1/ratelimit/abuse", query, 0))
			})
		},
	},
	{
		words: "abuse explain", args: "TENANT", brief: "show why a tenant is on its step, and its last moves",
		define: gets[rows.AbuseHistory](abusePath),
	},
	{
		words: "abuse forgive", args: "TENANT", brief: "take a tenant off the ladder of abuse detection",
		about: `It ends the tenant's penalty, and keeps the tenant off the ladder for a time. What it usually sends stays
remembered. An exemption keeps a tenant off the ladder for good.

  ratelimit abuse forgive acme --for 2h --reason "a load test, announced"`,
		define: func(c *call) action {
			pardon := time.Hour
			c.flags.Func("for", "keep the tenant off the ladder for this `duration`, at most 30d (default 1h)",
				reads(parseSpan, &pardon))
			c.wrongIf(func() bool { return pardon > rows.MaxPardon }, "--for: must be at most 30d")
			return c.writes(func() change {
				forgive := post(c.path(abusePath+"/forgive"), object{"for": pardon.String()})
				forgive.read = forgiven
				return forgive
			})
		},
	},
}

func forgiven(answer map[string]json.RawMessage, to *written) error {
	var done rows.Forgiven
	text, err := json.Marshal(answer)
	if err == nil {
		err = json.Unmarshal(text, &done)
	}
	to.What, to.Row = fmt.Sprintf("forgave %s until %s", done.Tenant, timeText(done.Until)), done
	for _, id := range done.Overrides {
		to.What += fmt.Sprintf(", ended override %d", id)
	}
	return err
}
