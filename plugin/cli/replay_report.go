package cli

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/node/routeconfig"
)

// replayNotes returns what the numbers of a replay leave out.
func replayNotes(file *routeconfig.File, gateway *replay.Gateway) (notes []string) {
	for _, config := range file.OfConsumers() {
		notes = append(notes, fmt.Sprintf("the config on %s is left out: logs do not say which config Kong ran", config))
	}
	return append(notes, gateway.Notes()...)
}

// showReplay shows a report; as a page, with at most so many of its rows, or all for 0, and without its course.
func (c *call) showReplay(r *replay.Report, most int) error {
	if c.format == formatCSV {
		return showCSV(c.stdout, items(r.Rows), "tenant", "tier", "policy", "endpoint", "mode", "limit", "requests", "denied",
			"first_denial", "first_denial_at", "worst_from=worst_window.from", "worst_seconds=worst_window.seconds",
			"worst_requests=worst_window.requests", "worst_denied=worst_window.denied", "worst_tokens=worst_window.tokens")
	}
	return c.print(r, func(out *page) {
		short := *r
		if most > 0 && len(r.Rows) > most {
			short.Rows = r.Rows[:most]
		}
		out.show(struct {
			replay.Report
			Series *struct{} `json:"series,omitempty"`
		}{Report: short})
		if left := len(r.Rows) - len(short.Rows); left > 0 {
			out.line("and %s with fewer denials: --max 0 shows all", counted(left, "row"))
		}
	})
}

// withoutTierText counts requests whose tenant's tier is not known.
func withoutTierText(n int64) string {
	return plural(n, "request is of a tenant without a tier", "requests are of tenants without a tier")
}
