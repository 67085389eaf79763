package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

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

// showReplay shows a report.
func (c *call) showReplay(r *replay.Report, most int) error {
	if c.format == formatCSV {
		return writeReplayCSV(c.stdout, r)
	}
	return c.print(r, func(out *page) { writeReplay(out, r, most) })
}

// writeReplay writes a report as a page.
func writeReplay(out *page, r *replay.Report, most int) {
	if r.Requests == 0 {
		out.line("no requests")
	} else {
		out.line("%s from %s to %s, of %s", counted(r.Requests, "request"), timeText(r.From), timeText(r.To),
			counted(r.Tenants, "tenant"))
		out.line("%d denied (%s)%s", r.Denied, percentText(r.DeniedPct), shadowText(r))
	}
	if r.Log.Denied > 0 {
		out.line("the log has %s (status 429): %d are denied here too, %d are not; %d are denied here only",
			counted(r.Log.Denied, "denial"), r.Log.Both, r.Log.OnlyLog, r.Log.OnlyReplay)
	}
	writeReplayInput(out, r)
	if len(r.Rows) == 0 {
		return
	}
	out.gap()
	shown := r.Rows
	if most > 0 && len(shown) > most {
		shown = shown[:most]
	}
	columns(out, "TENANT|POLICY|ENDPOINT|MODE|REQUESTS|DENIED|%|FIRST DENIAL|WORST WINDOW", shown, func(w replay.Row) []any {
		first := ""
		if w.FirstDenied != nil {
			first = w.FirstDenied.Format(time.RFC3339)
		}
		return []any{
			w.Tenant, w.Policy, w.Endpoint, modeCell(w.Mode), w.Requests, red(w.Denied, w.Denied > 0),
			fmt.Sprintf("%.2f", w.DeniedShare()), first, windowText(w.Worst),
		}
	})
	if left := len(r.Rows) - len(shown); left > 0 {
		out.line("and %s with fewer denials: --max 0 shows all", counted(left, "row"))
	}
}

// writeReplayInput writes what the numbers leave out.
func writeReplayInput(out *page, r *replay.Report) {
	if r.Uncovered > 0 {
		out.line("%s without a config of the plugin in --config: no limit applies",
			plural(r.Uncovered, "request is on a route", "requests are on routes"))
	}
	if r.Unmatched > 0 {
		out.marked(yellowMark, "%s left out: the log does not say which route, and several of --config may match by what "+
			"the log lacks: use --plugin-route, or add $host to the log format",
			plural(r.Unmatched, "request is", "requests are"))
	}
	for i := range r.UnmatchedRoutes {
		routes := &r.UnmatchedRoutes[i]
		out.line("  %d of %s, the first at %s", routes.Requests, routes.Text(), routes.First)
	}
	if r.Undecided > 0 {
		out.marked(redMark, "%s could not be decided", counted(r.Undecided, "request"))
	}
	if r.WithoutTier > 0 {
		out.marked(yellowMark, "%s: neither the log nor a consumer in --config names it, so the default tier decides",
			withoutTierText(r.WithoutTier))
	}
	in := r.Counts
	if in.Unparsed > 0 {
		out.marked(yellowMark, "%s no request, of %d:", plural(in.Unparsed, "line holds", "lines hold"), in.Lines)
		for _, p := range in.Problems {
			out.line("  %s:%d: %s", p.Log, p.Line, p.Problem)
		}
	}
	if in.Late > 0 {
		out.marked(yellowMark, "%s out of order by more than ten minutes, and left out: sort the log, or give its parts as "+
			"several logs", plural(in.Late, "request is", "requests are"))
	}
	if in.Gap.Seconds >= 3600 {
		out.line("no requests for %s from %s", time.Duration(in.Gap.Seconds*float64(time.Second)).Round(time.Second),
			timeText(time.UnixMicro(int64(in.Gap.From))))
	}
	if r.Evicted > 0 {
		out.marked(redMark, "%s did not fit into memory: too few requests are denied here",
			counted(int64(r.Evicted), "bucket"))
	}
	for _, note := range r.Notes {
		out.marked(yellowMark, "%s", note)
	}
}

// withoutTierText counts requests whose tenant's tier is not known.
func withoutTierText(n int64) string {
	return plural(n, "request is of a tenant without a tier", "requests are of tenants without a tier")
}

// shadowText returns what would be denied outside shadow mode; "" if nothing would.
func shadowText(r *replay.Report) string {
	if r.ShadowDenied == 0 {
		return ""
	}
	return fmt.Sprintf("; %d more would be, if nothing were in shadow mode (%s)",
		r.ShadowDenied, percentText(r.ShadowDeniedPct))
}

// percentText returns a percentage with as many digits as matter.
func percentText(percent float64) string { return strconv.FormatFloat(percent, 'g', 3, 64) + "%" }

// windowText returns a window in a table.
func windowText(w *replay.Window) string {
	if w == nil {
		return ""
	}
	text := fmt.Sprintf("%s: %d of %d denied", timeText(w.From), w.Denied, w.Requests)
	if w.Percent >= 1 {
		text += fmt.Sprintf(", %.0f%% of the limit", w.Percent)
	}
	return text
}

// writeReplayCSV writes the rows of a report as CSV.
func writeReplayCSV(to io.Writer, r *replay.Report) error {
	out := &lineBuffer{to: to}
	write := func(cells ...string) error {
		_, err := io.WriteString(out, csvLine(cells...))
		return err
	}
	err := write("tenant", "tier", "policy", "endpoint", "mode", "limit", "requests", "denied", "first_denial",
		"first_denial_at", "worst_from", "worst_seconds", "worst_requests", "worst_denied", "worst_tokens")
	for i := range r.Rows {
		if err != nil {
			break
		}
		w, first, worst := &r.Rows[i], "", [5]string{}
		if w.FirstDenied != nil {
			first = w.FirstDenied.Format(time.RFC3339Nano)
		}
		if w.Worst != nil {
			worst = [5]string{
				w.Worst.From.Format(time.RFC3339), fmt.Sprint(w.Worst.Seconds), fmt.Sprint(w.Worst.Requests),
				fmt.Sprint(w.Worst.Denied), fmt.Sprint(w.Worst.Tokens),
			}
		}
		err = write(csvText(w.Tenant), csvText(w.Tier), csvText(w.Policy), csvText(w.Endpoint), w.Mode, csvText(w.Limit),
			fmt.Sprint(w.Requests), fmt.Sprint(w.Denied), first, csvText(w.FirstLine),
			worst[0], worst[1], worst[2], worst[3], worst[4])
	}
	if err != nil {
		return err
	}
	return out.flush()
}
