package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var candidateReport = &command{
	words: "candidate report", args: "[NAME]", most: 1,
	brief: "show which requests a candidate would answer differently, by tenant, endpoint and policy",
	about: `Nodes count requests of tenants for which the candidate is not enforced, and report every 5 seconds. SEEN is
how much of a policy's window the candidate has seen: before 100 % it may deny more than the report shows. The policy
(request) counts requests, whichever policy denies them; the other rows count what one policy answers.

  ratelimit candidate report july --tenant acme`,
	define: func(c *call) action {
		query := c.queryFlags(rows.CandidateReportFilter{})
		return c.asks(func(ctx context.Context, rest *answers.Client) error {
			path, err := c.openCandidate(ctx, rest)
			var r rows.CandidateReport
			if err == nil {
				err = rest.Get(ctx, path+"/report", query, &r)
			}
			if err != nil {
				return err
			}
			return c.print(r, func(out *page) { reportPage(out, &r) })
		})
	},
}

// reportPage adds what a candidate would change.
func reportPage(out *page, r *rows.CandidateReport) {
	if r.Processes == 0 {
		out.line("no node has compared requests under candidate %s yet: they report every 5 seconds", r.Candidate.Name)
		return
	}
	out.line("candidate %s, compared for %s by %s, until %s", r.Candidate.Name, r.Until.Sub(r.Since).Round(time.Second),
		plural(int(r.Processes), "process", "processes"), timeText(r.Until))
	t := r.Total
	out.line("%s: %d denied by the candidate only (%s, %s), %d by the active policies only, %d by both",
		counted(int(t.Requests), "request"), t.CandidateOnly, percentOf(t.CandidateOnly, t.Requests),
		counted(int(t.Tenants), "tenant"), t.ActiveOnly, t.Both)
	if r.Dropped > 0 {
		out.line("%s found no room: there are too many tenants and endpoints", counted(int(r.Dropped), "count"))
	}
	out.gap()
	columns(out, "POLICY|WINDOW|SEEN", r.Windows, func(w rows.CandidateWindow) []any {
		return []any{w.Policy, fmt.Sprintf("%d s", w.WindowSize), fmt.Sprintf("%.0f %%", 100*w.Seen)}
	})
	out.gap()
	columns(out, "TENANT|ENDPOINT|POLICY|REQUESTS|CANDIDATE ONLY|ACTIVE ONLY|BOTH|LAST EXAMPLE", r.Items,
		func(n rows.CandidateCount) []any {
			return []any{
				n.Tenant, n.Endpoint, orDefault(n.Policy, "(request)"), n.Requests, n.CandidateOnly, n.ActiveOnly, n.Both,
				exampleText(n.Examples),
			}
		})
}

// percentOf returns a part of a number in percent.
func percentOf(part, all int64) string {
	if all == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.3g %%", 100*float64(part)/float64(all))
}

// exampleText describes the latest example.
func exampleText(list []rows.CandidateExample) string {
	if len(list) == 0 {
		return ""
	}
	e := list[0]
	return fmt.Sprintf("%s, denied by the %s: active %s, candidate %s", timeText(e.At), e.DeniedBy,
		orDefault(e.Active, "no limit"), orDefault(e.Candidate, "no limit"))
}
