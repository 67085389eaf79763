package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

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
			c.check(func() error {
				if pardon > rows.MaxPardon {
					return wrong("--for: must be at most 30d")
				}
				return nil
			})
			return c.writes(func() change {
				forgive := post(c.path(abusePath+"/forgive"), object{"for": pardon.String()})
				forgive.read = forgiven
				return forgive
			})
		},
	},
}

// forgiven reads what was forgiven.
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
