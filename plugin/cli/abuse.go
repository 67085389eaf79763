package cli

import (
	"context"
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
				return abuseList.show(c, answers.Each[rows.AbuseState](ctx, rest, "/v1/ratelimit/abuse", query, 0))
			})
		},
	},
	{
		words: "abuse explain", args: "TENANT", brief: "show why a tenant is on its step, and its last moves",
		define: gets(abusePath, abusePage),
	},
	{
		words: "abuse forgive", args: "TENANT", brief: "take a tenant off the ladder of abuse detection",
		about: `It ends the tenant's penalty, and keeps the tenant off the ladder for a time. What it usually sends stays
remembered. An exemption keeps a tenant off the ladder for good.

  ratelimit abuse forgive acme --for 2h --reason "a load test, announced"`,
		define: func(c *call) action {
			pardon := spanFlag{length: time.Hour}
			c.flags.Var(&pardon, "for", "keep the tenant off the ladder for this `duration`, at most 30d (default 1h)")
			c.check(func() error {
				if pardon.length > rows.MaxPardon {
					return wrong("--for: must be at most 30d")
				}
				return nil
			})
			return c.writes(func(ctx context.Context, rest *answers.Client) (written, error) {
				var done rows.Forgiven
				forgive := post(c.path(abusePath+"/forgive"), object{"for": pardon.length.String()})
				version, err := c.send(ctx, rest, forgive, &done)
				text := fmt.Sprintf("forgave %s until %s", done.Tenant, timeText(done.Until))
				for _, id := range done.Overrides {
					text += fmt.Sprintf(", ended override %d", id)
				}
				return written{What: text, Version: version, Row: done}, err
			})
		},
	},
}

var abuseList = listing[rows.AbuseState]{
	"TENANT|STEP|MODE|SINCE|OVERRIDE|UNTIL|USUAL/MIN|REASON",
	func(a rows.AbuseState) []any {
		return []any{
			a.Tenant, a.Step, a.Mode, timeCell(a.Since), numberText(a.Override), timeCell(a.OverrideUntil),
			fmt.Sprintf("%.0f", a.Usual), a.Reason,
		}
	},
}

// timeCell returns a time in a table, or "" for none.
func timeCell(t *time.Time) any {
	if t == nil {
		return ""
	}
	return *t
}

// abusePage adds what is remembered of a tenant.
func abusePage(out *page, h *rows.AbuseHistory) {
	if h.ScoredAt.IsZero() {
		out.line("%s is on step none: it was not scored within a week", h.Tenant)
		abuseMoves(out, h)
		return
	}
	out.line("%s is on step %s, in mode %s", h.Tenant, h.Step, h.Mode)
	if h.Reason != "" {
		out.line("because: %s", h.Reason)
	}
	if h.FlaggedAt != nil {
		out.line("last flagged at %s", timeText(*h.FlaggedAt))
	}
	if h.Override != nil && h.OverrideUntil != nil {
		out.line("override %d until %s", *h.Override, timeText(*h.OverrideUntil))
	}
	if h.ForgivenUntil != nil {
		out.line("forgiven until %s", timeText(*h.ForgivenUntil))
	}
	out.line("usually %.0f requests a minute, from %s; last scored at %s", h.Usual, counted(h.Learned, "minute"),
		timeText(h.ScoredAt))
	abuseMoves(out, h)
}

// abuseMoves adds the moves of a tenant.
func abuseMoves(out *page, h *rows.AbuseHistory) {
	if len(h.Moves) == 0 {
		return
	}
	out.gap()
	columns(out, "AT|FROM|TO|MODE|REASON", h.Moves, func(m rows.AbuseMove) []any {
		return []any{m.At, m.From, m.To, m.Mode, m.Reason}
	})
}
