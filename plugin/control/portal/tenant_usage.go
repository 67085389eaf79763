package portal

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// maxEndpoints bounds the endpoints of the table; the others are summed up.
const maxEndpoints = 100

// useSum sums up usage, of an endpoint or of all.
type useSum struct {
	Endpoint, Unit                             string // Unit: of Cost, if that is of one policy
	Admitted, Soft, Denied, ShadowDenied, Cost int64
}

type orgUsage struct {
	Org       string
	Spans     []period
	Span      period
	From, To  time.Time
	Total     useSum
	Endpoints []useSum
	Others    int // endpoints that Rest sums up
	Rest      useSum
	Admitted  chart
	Apart     bool   // some limits have no line, because there is one for each user, for example
	Sum       *chart // of today, with a limit by the day; nil: there is none, or another time is shown
	Quotas    []orgQuota
	NoUsage   bool // what is used now cannot be read
}

// orgQuota is a bucket of a limit with what is used of it, and until when it lasts.
type orgQuota struct {
	answers.BucketUsage
	Words     string
	Forecast  bool      // the fields below say until when it lasts
	Idle      bool      // there were no requests lately
	Exhausted time.Time // at the rate of the last hour; zero: the limit lasts
	Empty     bool
	Unknown   bool // requests cost what their answers report, so their number says nothing
}

// readOrgUsage reads the usage of an org over time, by endpoint, and what becomes of its quotas.
func readOrgUsage(v *visit) (*orgUsage, error) {
	data := &orgUsage{Org: v.caller.Org, Spans: usageSpans, Span: periodNamed(usageSpans, v.r.FormValue("span"), 0)}
	now := v.portal.Now().UTC()
	from := now.Truncate(day).Add(day - data.Span.length)
	limits, err := v.orgLimits(nil)
	if err != nil {
		return nil, err
	}
	days, err := v.historyByEndpoint(from, "1d")
	if err != nil {
		return nil, err
	}
	steps := days // the graph sums up the endpoints
	if data.Span.Step != "1d" {
		if steps, err = v.history(data.Org, from, data.Span.Step, nil); err != nil {
			return nil, err
		}
	}
	data.draw(steps, limits.Limits)
	data.sum(days.Items, maxEndpoints)
	buckets, err := v.orgBuckets(nil)
	if data.NoUsage = isStatus(err, 503); err != nil && !data.NoUsage {
		return nil, err
	}
	lately, err := v.historyByEndpoint(now.Add(-time.Hour), "1h")
	if err != nil {
		return nil, err
	}
	data.Quotas = quotasOf(planLimits(limits.Limits, buckets, &lately, now))
	return data, nil
}

// draw sets the graphs, given the sums of each step.
func (u *orgUsage) draw(steps answers.UsageHistory, limits []answers.LimitInForce) {
	u.From, u.To = steps.From, steps.To
	step := u.Span.bucket
	most, name := limitOfStep(limits, step)
	u.Apart = slices.ContainsFunc(limits, func(l answers.LimitInForce) bool { return !isOwnTotal(&l) })
	u.Admitted = requestsChart(&steps, step)
	u.Admitted.limit(name, most)
	utcDay := answers.Window{WindowSize: int64(day / time.Second)}
	if most, name := limitOfStep(limits, day); u.Span.length == day && most > 0 {
		admitted := pointsOf(steps, step, func(r *answers.UsageRow) int64 { return r.Admitted })
		sums := windowSums(admitted, beginOf(utcDay, true))
		u.Sum = levelChart("Admitted requests since midnight UTC", sums, step)
		u.Sum.limit(name, most)
	}
}

// limitOfStep returns the fewest requests that a limit on all requests of the org admits in a step, and its name; 0:
// none does. Only limits whose windows fit into a step say how many that are.
func limitOfStep(limits []answers.LimitInForce, step time.Duration) (fewest int64, name string) {
	seconds := int64(step / time.Second)
	for i := range limits {
		l := &limits[i]
		isUTCDay := l.Period == "day" && l.TimeZone == "UTC" && l.Anchor == nil
		fits := (l.WindowSize > 0 || isUTCDay) && l.Seconds() <= seconds
		if !fits || !isWide(l) || l.Scope != "tenant" || l.Endpoint != "" || l.Settles {
			continue
		}
		perStep := float64(l.Limit) / float64(l.Seconds()) * float64(seconds) / float64(max(l.Cost, 1))
		if most := int64(perStep + 0.5); fewest == 0 || most < fewest {
			fewest, name = most, l.Policy
		}
	}
	return fewest, name
}

// sum sets the sums of rows: in all, of each endpoint with the busiest first, and of those beyond the most that are
// listed.
func (u *orgUsage) sum(uses []answers.UsageRow, most int) {
	sums := map[string]*useSum{}
	for i := range uses {
		r := sumOf(&uses[i])
		if sums[r.Endpoint] == nil {
			sums[r.Endpoint] = &useSum{Endpoint: r.Endpoint}
		}
		sums[r.Endpoint].add(r)
		u.Total.add(r)
	}
	for _, sum := range sums {
		u.Endpoints = append(u.Endpoints, *sum)
	}
	slices.SortFunc(u.Endpoints, func(a, b useSum) int {
		return cmp.Or(cmp.Compare(b.Admitted+b.Denied, a.Admitted+a.Denied), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	if u.Others = max(len(u.Endpoints)-most, 0); u.Others == 0 {
		return
	}
	for i := range u.Endpoints[most:] {
		u.Rest.add(u.Endpoints[most+i])
	}
	u.Endpoints = u.Endpoints[:most]
}

func sumOf(r *answers.UsageRow) useSum {
	return useSum{orZero(r.Endpoint), r.Unit, r.Admitted, r.Soft, r.Denied, r.ShadowDenied, orZero(r.Cost)}
}

// orZero returns what a pointer is to, or zero for nil.
func orZero[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

func (r *useSum) add(other useSum) {
	r.Admitted += other.Admitted
	r.Soft += other.Soft
	r.Denied += other.Denied
	r.ShadowDenied += other.ShadowDenied
	r.Cost += other.Cost
	r.Unit = cmp.Or(r.Unit, other.Unit)
}

// leastQuota is the shortest window of a limit that has a forecast, in seconds.
const leastQuota = 3600

// quotaOf returns a bucket of a limit. If the limit counts all requests of the org in windows of an hour or longer, it
// has a forecast.
func quotaOf(
	p *planLimit, b *answers.BucketUsage, limits []answers.LimitInForce, lately *answers.UsageHistory, now time.Time,
) orgQuota {
	q := orgQuota{BucketUsage: *b, Words: p.Words, Empty: b.Remaining <= 0, Unknown: p.Settles}
	isLong := p.Period != "" || p.WindowSize >= leastQuota
	if q.Forecast = isWide(&p.LimitInForce) && isLong && !lately.From.IsZero(); !q.Forecast {
		return q
	}
	of := p.LimitInForce
	if of.Scope == "tenant+endpoint" {
		of.Endpoint = b.Endpoint
	}
	rate := rateOf(&of, limits, lately.Items, now.Sub(lately.From))
	q.Idle = rate == 0
	if !q.Empty && !q.Unknown {
		q.Exhausted = exhaustedAt(b, &of, rate, now)
	}
	return q
}

// quotasOf returns the buckets that have a forecast, the one of which most is used first.
func quotasOf(plan []planLimit) (quotas []orgQuota) {
	for i := range plan {
		for _, q := range plan[i].Used {
			if q.Forecast {
				quotas = append(quotas, q)
			}
		}
	}
	slices.SortStableFunc(quotas, func(a, b orgQuota) int { return cmp.Compare(b.Fraction, a.Fraction) })
	return quotas
}

// exhaustedAt returns the instant at which nothing is left of a limit's bucket if so many tokens are spent per second
// from now on, or the zero time if the limit lasts: until its window ends, or for good, because it refills as fast.
func exhaustedAt(b *answers.BucketUsage, l *answers.LimitInForce, rate float64, now time.Time) time.Time {
	algorithm, _ := limit.ParseAlgorithm(l.Algorithm)
	spec := limit.Spec{Algorithm: algorithm, Quantity: l.Limit, Window: limit.Micros(l.Seconds()) * limit.Second}
	after := spec.ExhaustedAfter(b.Used, b.Limit-b.Used, rate)
	at := now.Add(time.Duration(after) * time.Microsecond).Truncate(time.Second)
	endsBefore := algorithm == limit.FixedWindow && !b.Reset.IsZero() && !at.Before(b.Reset)
	if after == 0 || endsBefore {
		return time.Time{}
	}
	return at
}

// rateOf returns how many tokens of a limit were spent per second, given requests by endpoint in a span. The limit of
// requests without an endpoint of their own leaves out those that another limit of its name covers.
func rateOf(l *answers.LimitInForce, all []answers.LimitInForce, uses []answers.UsageRow, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	covered := map[string]bool{}
	for i := range all {
		if all[i].Policy == l.Policy && all[i].Endpoint != "" {
			covered[all[i].Endpoint] = true
		}
	}
	var admitted int64
	for _, u := range uses {
		endpoint := orZero(u.Endpoint)
		if l.Endpoint == endpoint && l.Endpoint != "" || l.Endpoint == "" && !covered[endpoint] {
			admitted += u.Admitted
		}
	}
	return float64(admitted*max(l.Cost, 1)) / span.Seconds()
}
