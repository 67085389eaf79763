package portal

import (
	"cmp"
	"net/url"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// tenantView is the page of a tenant. A part that the API cannot return has the reason instead.
type tenantView struct {
	Org      string
	CanWrite bool

	Row       answers.Tenant
	Limits    answers.InForce
	NoLimits  string
	Usage     []answers.BucketUsage
	NoUsage   string
	MoreUsage int
	Graph     graph
	Denials   answers.DenialList
	Abuse     answers.AbuseState
}

const maxBuckets = 50

// serveTenant shows a tenant: its limits in words, what it has used, its denials and its overrides. One without a row
// has the default tier.
func serveTenant(v *visit) error {
	t, usage := &tenantView{Org: v.org(), CanWrite: v.isAdmin()}, answers.Usage{}
	var without string
	for _, part := range []struct {
		below string
		query url.Values
		into  any
		why   *string // it is missing
	}{
		{"", nil, &t.Row, &without},
		{"/ratelimit/policies", url.Values{"limit": {pageRows}}, &t.Limits, &t.NoLimits},
		{"/ratelimit/usage", nil, &usage, &t.NoUsage},
		{"/ratelimit/denials", url.Values{"limit": {"10"}}, &t.Denials, &without},
		{"/ratelimit/abuse", nil, &t.Abuse, &without},
	} {
		var err error
		if *part.why, err = unavailable(v.get(orgAPI(t.Org, part.below), part.query, part.into)); err != nil {
			return err
		}
	}
	t.Usage = usage.Items[:min(len(usage.Items), maxBuckets)]
	t.MoreUsage = len(usage.Items) - len(t.Usage)
	requests, err := v.history(t.Org, v.portal.Now().Add(-aDay.length), aDay.Step, nil)
	if err != nil {
		return err
	}
	points := pointsOf(requests, aDay.step(), func(r *answers.UsageRow) int64 { return r.Admitted + r.Denied })
	t.Graph = lineGraph(points, 0, "", "Requests of "+t.Org+" by minute")
	return v.render("operator_tenant", t.Org, t)
}

// limitGraph draws the use of a limit. A window that is shorter than a step is counted by step, with what the limit
// allows in a step; a longer one as it fills.
func limitGraph(points []graphPoint, step time.Duration, l *answers.LimitInForce, title string) graph {
	window := time.Duration(l.WindowSize) * time.Second
	switch {
	case window <= 0:
		return lineGraph(points, 0, l.Unit, title)
	case window <= step:
		return lineGraph(points, l.Limit*int64(step/window), l.Unit, title)
	}
	return lineGraph(windowSums(points, window, l.Algorithm == "fixed_window"), l.Limit, l.Unit, title)
}

// isOwnTotal reports whether a tenant has one bucket of a limit, so that its history is that of the bucket.
func isOwnTotal(l *answers.LimitInForce) bool { return l.Scope == "tenant" }

type usageView struct {
	Org      string
	Policies []string
	Policy   string
	Periods  []period
	Period   period
	Words    string
	Apart    bool // the limit has no line, because the graph does not count what one of its buckets does
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
	u.Policies = policiesOf(limits.Limits)
	var chosen answers.LimitInForce // the first one of the policy
	isChosen := func(l answers.LimitInForce) bool { return l.Policy == u.Policy }
	if at := slices.IndexFunc(limits.Limits, isChosen); at >= 0 {
		chosen = limits.Limits[at]
		u.Words = limitWords(&chosen, u.Org)
	}
	window := time.Duration(chosen.Window.Seconds()) * time.Second
	suits := slices.IndexFunc(periods, func(p period) bool { return p.length > window })
	u.Period = periodNamed(periods, v.r.URL.Query().Get("period"), max(suits, 0))
	more := url.Values{}
	if u.Policy != "" {
		more.Set("policy", u.Policy)
	}
	history, err := v.history(u.Org, v.portal.Now().Add(-u.Period.length), u.Period.Step, more)
	if err != nil {
		return err
	}
	u.draw(&history, chosen)
	return v.render("operator_usage", u.Org+": usage", &u)
}

// policiesOf returns the names of the policies of limits, each once.
func policiesOf(limits []answers.LimitInForce) (names []string) {
	for i := range limits {
		if name := limits[i].Policy; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// draw sets the graphs and the totals.
func (u *usageView) draw(history *answers.UsageHistory, l answers.LimitInForce) {
	for i := range history.Items {
		u.Total.add(sumOf(&history.Items[i]))
	}
	step := u.Period.step()
	denied := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return r.Denied })
	u.Denied = lineGraph(denied, 0, "", "Denied requests")
	if u.Policy == "" {
		admitted := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return r.Admitted })
		u.Graph = lineGraph(admitted, 0, "", "Admitted requests")
		return
	}
	spent := pointsOf(*history, step, func(r *answers.UsageRow) int64 { return orZero(r.Cost) })
	if !isOwnTotal(&l) && l.WindowSize > 0 {
		l.WindowSize, u.Apart = 0, true
	}
	l.Unit = cmp.Or(l.Unit, u.Total.Unit)
	u.Graph = limitGraph(spent, step, &l, "Used of "+u.Policy)
}
