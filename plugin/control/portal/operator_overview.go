package portal

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

type overviewView struct {
	Missing   []string // why parts of the page are empty
	Range     period
	Fleet     fleet
	Requests  chart
	Total     useSum
	Rate      rate
	Denied    answers.UsageTop // denied most
	RunOut    []runOut         // the first to use up a limit
	Abuse     []answers.AbuseState
	Candidate *answers.Candidate // the open one
}

const overviewRows = 8

// rate is how many requests there were per second lately.
type rate struct{ Admitted, Denied float64 }

// runOut is a limit of which little is left.
type runOut struct {
	Org, Policy string
	Fraction    float64   // used
	At          time.Time // when nothing is left, at the rate of its last notice; zero: unknown
}

// serveOverview shows what the fleet admits and denies, and what may need a look. The first page of a tenant is that of
// its org.
func serveOverview(v *visit) error {
	if v.caller.Role == api.Tenant {
		return v.redirect(orgHome, notice{})
	}
	o := &overviewView{Range: rangeOf(v.r)}
	var abuse answers.Page[answers.AbuseState]
	var candidates answers.CandidateList
	fleetErr := v.get("/v1/ratelimit/fleet", nil, &o.Fleet)
	if isStatus(fleetErr, http.StatusServiceUnavailable) {
		return fleetErr // the database is away, and without it all parts would look as if there was nothing
	}
	for _, read := range []func() error{
		func() error { return fleetErr },
		func() error { return o.readRequests(v) },
		func() error { return o.readRate(v) },
		func() error { return v.readTop(url.Values{"by": {"denied"}}, &ranked{number: 1}, &o.Denied) },
		func() error { return o.readRunOut(v) },
		func() error {
			return v.get("/v1/ratelimit/abuse", url.Values{"limit": {strconv.Itoa(overviewRows)}}, &abuse)
		},
		func() error { return v.get("/v1/ratelimit/candidates", nil, &candidates) },
	} {
		missing, err := unavailable(read())
		if err != nil {
			return err
		}
		if missing != "" && !slices.Contains(o.Missing, missing) {
			o.Missing = append(o.Missing, missing)
		}
	}
	o.Denied.Items = o.Denied.Items[:min(len(o.Denied.Items), overviewRows)]
	o.Fleet.countDegraded()
	o.Abuse = abuse.Items
	for i := range candidates.Items {
		if candidates.Items[i].State == "open" {
			o.Candidate = &candidates.Items[i]
		}
	}
	return v.render("operator_overview", "Overview", o)
}

// usageTotal reads what all tenants used in the last time, which is one of ranges or shorter.
func (v *visit) usageTotal(last string) (found answers.UsageHistory, err error) {
	return found, v.getShared("/v1/ratelimit/usage/history", url.Values{"last": {last}}, &found)
}

// readRequests reads the requests of all tenants over time, and the changes of limits.
func (o *overviewView) readRequests(v *visit) error {
	history, err := v.usageTotal(o.Range.Name)
	if err != nil {
		return err
	}
	for i := range history.Items {
		o.Total.add(sumOf(&history.Items[i]))
	}
	step := map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "1d": day}[history.Step]
	o.Requests = requestsChart(&history, max(step, time.Minute))
	changes, err := v.changesOfLimits(history.From, "")
	o.Requests.Marks = marksOf(changes)
	return err
}

// readRate reads the rate of the last whole minutes, whose usage the nodes have reported.
func (o *overviewView) readRate(v *visit) error {
	const minutes = 5
	history, err := v.usageTotal("7m")
	until := v.portal.Now().Add(-15 * time.Second).Truncate(time.Minute)
	for i := range history.Items {
		r := &history.Items[i]
		if r.At.Before(until) && !r.At.Before(until.Add(-minutes*time.Minute)) {
			o.Rate.Admitted += float64(r.Admitted) / (minutes * 60)
			o.Rate.Denied += float64(r.Denied) / (minutes * 60)
		}
	}
	return err
}

// readRunOut reads the limits with the least left: those with a forecast, the soonest first, and then the others.
func (o *overviewView) readRunOut(v *visit) error {
	now := v.portal.Now()
	var notices answers.QuotaNotices
	err := v.get("/v1/ratelimit/usage/notices", url.Values{"limit": {pageRows}}, &notices)
	if err != nil {
		return err
	}
	add := func(r runOut) {
		isSame := func(other runOut) bool { return other.Org == r.Org && other.Policy == r.Policy }
		if !slices.ContainsFunc(o.RunOut, isSame) {
			o.RunOut = append(o.RunOut, r)
		}
	}
	for _, n := range notices.Items {
		if n.ExhaustedAt != nil && n.ExhaustedAt.After(now) && n.Limit > 0 {
			add(runOut{n.Tenant, n.Policy, float64(n.Used) / float64(n.Limit), *n.ExhaustedAt})
		}
	}
	slices.SortFunc(o.RunOut, func(a, b runOut) int { return a.At.Compare(b.At) })
	var near answers.NearLimits
	_, err = unavailable(v.readNearLimits(url.Values{}, &ranked{number: 1}, &near))
	for _, n := range near.Items {
		add(runOut{n.Org, n.Policy, n.Fraction, time.Time{}})
	}
	o.RunOut = o.RunOut[:min(len(o.RunOut), overviewRows)]
	return err
}

// orgUsage reads tenants with what they used in the range of the page.
func (v *visit) orgUsage(query url.Values) (found answers.OrgUsages, err error) {
	query.Set("last", rangeOf(v.r).Name)
	return found, v.getShared("/v1/ratelimit/usage/orgs", query, &found)
}
