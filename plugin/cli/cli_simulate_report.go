package cli

import (
	"fmt"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
)

// writeReport writes the report of a simulation.
func writeReport(out *page, r *simulate.Report) {
	out.line("%s", r.About)
	out.line("%s, %s, %s, %g s at %s requests/s, seed %d", counted(r.Nodes, "node"), counted(len(r.Masters), "master"),
		counted(r.Tenants, "tenant"), r.Seconds, rounded(float64(r.Offered)/r.Seconds), r.Seed)
	out.gap()
	columns(out, "REQUESTS|NUMBER|REMARK", requestRows(r), func(row [3]string) []any { return []any{row[0], row[1], row[2]} })
	out.gap()
	columns(out, "COST|AMOUNT|REMARK", costRows(r), func(row [3]string) []any { return []any{row[0], row[1], row[2]} })
	out.gap()
	const policies = "POLICY|BUCKETS|TOKENS|ABOVE THE BOUND|DOCUMENTED|WITHIN"
	columns(out, policies, r.Policies, func(p simulate.PolicyCount) []any {
		documented := strconv.FormatInt(p.Documented, 10)
		if p.Documented < 0 {
			documented = "any number"
		}
		return []any{p.Policy, p.Buckets, p.Tokens, p.Over, documented, p.Within}
	})
	out.gap()
	writeTimeline(out, r)
	out.gap()
	out.line("CPU times are those of %s.", simulate.CostSources)
}

// requestRows returns what became of the requests.
func requestRows(r *simulate.Report) [][3]string {
	of := func(n uint64) string { return percentText(100*float64(n)/max(float64(r.Offered), 1)) + " of all" }
	rows := [][3]string{
		{"offered", fmt.Sprint(r.Offered), ""},
		{"admitted", fmt.Sprint(r.Admitted), of(r.Admitted)},
		{"denied", fmt.Sprint(r.Denied), of(r.Denied)},
		{
			"an ideal limiter admits", fmt.Sprint(r.Ideal),
			"one store, without nodes, latency and faults: " + percentText(r.UnderPct) + " fewer were admitted",
		},
		{"decided without a call", percentText(r.FromLeasePct), "from a lease, or a remembered denial"},
		{"decided by Redis", percentText(r.FromRedisPct), ""},
		{"decided by fail modes", percentText(r.LocalPct), ""},
		{
			"wait for Redis", fmt.Sprintf("%.2f ms", r.WaitP99),
			fmt.Sprintf("99th percentile of all requests; median %.2f ms, 99.9th %.2f ms", r.WaitP50, r.WaitP999),
		},
	}
	if r.Lost > 0 {
		rows = append(rows, [3]string{"lost", fmt.Sprint(r.Lost), "at nodes that died"})
	}
	if o := r.Outage; o != (simulate.OutageCount{}) {
		rows = append(rows, [3]string{
			"tokens admitted without Redis", fmt.Sprint(o.Unverified),
			fmt.Sprintf("%d charged afterwards; %d refilled before, or found no room; %d more may be charged already",
				o.Charged, o.WrittenOff, o.Unknown),
		})
	}
	return rows
}

// costRows returns what the requests cost.
func costRows(r *simulate.Report) [][3]string {
	busiest, leases := r.Busiest(), r.Leases
	return [][3]string{
		{"Redis commands", rounded(r.RedisOps) + "/s", fmt.Sprintf("%.1f for 1,000 requests", r.OpsPer1000)},
		{"Redis CPU", fmt.Sprintf("%.2f cores", r.RedisCores), fmt.Sprintf("the busiest master has %s commands/s and is "+
			"busy for %s of the time", rounded(busiest.Ops), percentText(busiest.CPUPct))},
		{"CPU of the nodes", fmt.Sprintf("%.2f cores", r.NodeCores), "of the plugin, without Kong's own part"},
		{"tokens leased", fmt.Sprint(leases.Granted), fmt.Sprintf("%s of them spent, %d returned, %d expired",
			percentText(leases.EfficiencyPct), leases.Returned, leases.Expired)},
	}
}

// writeTimeline writes the course of the numbers as bars, one for each part of the time.
func writeTimeline(out *page, r *simulate.Report) {
	lines := []struct {
		name  string
		value func(*simulate.Point) float64
	}{
		{"offered", func(p *simulate.Point) float64 { return float64(p.Offered) }},
		{"admitted", func(p *simulate.Point) float64 { return float64(p.Admitted) }},
		{"ideal", func(p *simulate.Point) float64 { return float64(p.Ideal) }},
		{"Redis commands", func(p *simulate.Point) float64 { return float64(p.RedisOps) }},
		{"degraded nodes", func(p *simulate.Point) float64 { return float64(p.Degraded) }},
	}
	columns(out, "TIMELINE|HIGHEST|"+fmt.Sprintf("0 TO %g S", r.Seconds), lines, func(l struct {
		name  string
		value func(*simulate.Point) float64
	},
	) []any {
		values := make([]float64, len(r.Timeline))
		highest := 0.0
		for i := range r.Timeline {
			values[i] = l.value(&r.Timeline[i])
			highest = max(highest, values[i])
		}
		return []any{l.name, rounded(highest), barLine(values)}
	})
}

// rounded returns a number without a fraction, unless it is small.
func rounded(n float64) string {
	if n < 10 {
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}
