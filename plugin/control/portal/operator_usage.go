package portal

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// period is a time that a graph shows, in steps that the API has.
type period struct {
	Name, Label string
	Step        string // of the API
	length      time.Duration
}

// The periods of graphs. The API returns at most 1,500 steps.
var (
	anHour  = period{"1h", "hour", "1m", time.Hour}
	aDay    = period{"24h", "24 hours", "1m", 24 * time.Hour}
	aWeek   = period{"7d", "7 days", "1h", 7 * 24 * time.Hour}
	aMonth  = period{"30d", "30 days", "1d", 30 * 24 * time.Hour}
	aYear   = period{"365d", "year", "1d", 365 * 24 * time.Hour}
	periods = []period{anHour, aDay, aWeek, aMonth, aYear}
)

// step returns the length of a step.
func (p *period) step() time.Duration {
	return map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "1d": 24 * time.Hour}[p.Step]
}

// periodNamed returns the period of a name, or the one that suits a window: it shows several windows.
func periodNamed(name string, window time.Duration) *period {
	at := slices.IndexFunc(periods, func(p period) bool { return p.Name == name })
	if at < 0 {
		at = slices.IndexFunc(periods, func(p period) bool { return p.length > window })
	}
	return &periods[max(at, 0)]
}

// historyQuery returns the query of a period, of requests or of what a policy did.
func historyQuery(now time.Time, p *period, policy string) url.Values {
	query := url.Values{"step": {p.Step}, "from": {now.Add(-p.length).UTC().Format(time.RFC3339)}}
	if policy != "" {
		query.Set("policy", policy)
	}
	return query
}

// windowSums returns what was used of a window at each point: the sum since the window began if windows are fixed, else
// of the last window. Steps before the first point are missing in the first sums.
func windowSums(points []graphPoint, window time.Duration, fixed bool) []graphPoint {
	sums := make([]graphPoint, len(points))
	var sum int64
	first := 0 // the first point that sum has
	for i, p := range points {
		sum += p.Value
		begin := p.At.Add(-window) // exclusive
		if fixed {
			begin = p.At.Truncate(window).Add(-1)
		}
		for ; !points[first].At.After(begin); first++ {
			sum -= points[first].Value
		}
		sums[i] = graphPoint{p.At, sum}
	}
	return sums
}

// limitGraph draws the use of a limit. A window that is shorter than a step is counted by step, with what the limit
// allows in a step; a longer one as it fills.
func limitGraph(points []graphPoint, step time.Duration, l *answers.LimitInForce, title string) graph {
	window := time.Duration(l.WindowSize) * time.Second
	switch {
	case window <= 0:
		return lineGraph(points, 0, title)
	case window <= step:
		return lineGraph(points, l.Limit*int64(step/window), title)
	}
	return lineGraph(windowSums(points, window, l.Algorithm == "fixed_window"), l.Limit, title)
}

// isOwnTotal reports whether a tenant has one bucket of a limit, so that its history is that of the bucket.
func isOwnTotal(l *answers.LimitInForce) bool { return l.Scope == "tenant" }

// apartWords returns why a limit of a scope has no line in the graph of a tenant.
func apartWords(scope string) string {
	switch scope {
	case "global", "endpoint":
		return "The limit has no line: all tenants share it, and the graph counts what one uses"
	}
	each := scope
	if scope == "ip" {
		each = "address"
	}
	if of, isEndpoint := strings.CutSuffix(scope, "+endpoint"); isEndpoint {
		if each = "endpoint"; of != "tenant" {
			each = of + " and endpoint"
		}
	}
	return "The limit has no line: there is one for each " + each + ", and the graph counts all of them together"
}

// usageView is the page of what a tenant used over time.
type usageView struct {
	Org      string
	Policies []string
	Policy   string
	Periods  []period
	Period   *period
	Words    string
	Apart    string // why the limit has no line; "": it has one, or no limit is shown
	Graph    graph
	Denied   graph
	Total    useSum
}

// serveTenantUsage shows what a tenant used over time: its requests, or what it used of a limit.
func serveTenantUsage(v *visit) error {
	u := usageView{Org: v.org(), Policy: v.r.URL.Query().Get("policy"), Periods: periods}
	var limits answers.InForce
	_, err := unavailable(v.get(orgAPI(u.Org, "/ratelimit/policies"), url.Values{"limit": {pageRows}}, &limits))
	if err != nil {
		return err
	}
	chosen := u.choose(limits.Limits)
	u.Period = periodNamed(v.r.URL.Query().Get("period"), time.Duration(chosen.WindowSize)*time.Second)
	var history answers.UsageHistory
	query := historyQuery(v.portal.Now(), u.Period, u.Policy)
	if err := v.get(orgAPI(u.Org, "/ratelimit/usage/history"), query, &history); err != nil {
		return err
	}
	u.draw(&history, chosen)
	return v.render("operator_usage", u.Org+": usage", &u)
}

// choose lists the policies of limits, and returns the limit of the chosen one: the first of its name.
func (u *usageView) choose(limits []answers.LimitInForce) (chosen answers.LimitInForce) {
	for i := range limits {
		l := &limits[i]
		if !slices.Contains(u.Policies, l.Policy) {
			u.Policies = append(u.Policies, l.Policy)
		}
		if l.Policy == u.Policy && chosen.WindowSize == 0 {
			chosen = *l
			u.Words = limitWords(l, u.Org)
		}
	}
	return chosen
}

// draw sets the graphs and the totals.
func (u *usageView) draw(history *answers.UsageHistory, l answers.LimitInForce) {
	for i := range history.Items {
		u.Total.add(sumOf(&history.Items[i]))
	}
	step := u.Period.step()
	denied := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return r.Denied })
	u.Denied = lineGraph(denied, 0, "Denied requests")
	if u.Policy == "" {
		admitted := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return r.Admitted })
		u.Graph = lineGraph(admitted, 0, "Admitted requests")
		return
	}
	spent := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return orZero(r.Cost) })
	if !isOwnTotal(&l) && l.WindowSize > 0 {
		l.WindowSize, u.Apart = 0, apartWords(l.Scope)
	}
	u.Graph = limitGraph(spent, step, &l, "Used of "+u.Policy)
}
