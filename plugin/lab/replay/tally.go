package replay

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Anonymous is the tenant of requests without one in a report.
const Anonymous = "(anonymous)"

// Tally adds decisions up to a report. The zero value is empty.
type Tally struct {
	report  Report
	rows    map[rowKey]*row
	tenants map[string]*Sum
	limits  map[*policy.Policy]string // in words
	series  series

	unmatched map[string]*Unmatched // by their routes
	first     limit.Micros
	last      limit.Micros
}

// rowKey identifies a row of a report.
type rowKey struct{ tenant, policy, endpoint string }

// row is a row that is being counted.
type row struct {
	Row
	window limit.Micros
	limit  int64 // of the tenant in a window; 0: there is no such limit
	now    window
	worst  window
}

// window counts one window of a policy.
type window struct {
	number, requests, denied, tokens int64
}

// worseThan reports whether w has more denials than another window, or as many and more tokens requested.
func (w *window) worseThan(other *window) bool {
	if w.denied != other.denied {
		return w.denied > other.denied
	}
	return w.tokens > other.tokens
}

// Add counts the decision about a request.
func (t *Tally) Add(r *Request, d *decision.Decision) {
	if t.rows == nil {
		t.rows, t.tenants, t.limits = map[rowKey]*row{}, map[string]*Sum{}, map[*policy.Policy]string{}
	}
	t.count(r)
	denied := d.Denied() || d.ShadowDenied
	if d.Denied() {
		t.report.Denied++
	}
	if d.ShadowDenied && !d.Denied() {
		t.report.ShadowDenied++
	}
	t.compare(r, d.Denied())
	tenant := tenantOf(d)
	sum := t.tenants[tenant]
	if sum == nil {
		sum = &Sum{Name: tenant}
		t.tenants[tenant] = sum
	}
	if sum.Requests++; denied {
		sum.Denied++
	}
	if reason := reasonOf(d); reason != decision.Counted {
		t.addReason(r, d, tenant, reason)
	}
	for i := range d.Statuses {
		t.addBound(r, d, i, tenant)
	}
	t.series.add(r.At, denied)
}

// AddUncovered counts a request on whose route the plugin does not run.
func (t *Tally) AddUncovered(r *Request) {
	t.count(r)
	t.report.Uncovered++
	t.series.add(r.At, false)
}

// AddUnmatched counts a request that several routes may take.
func (t *Tally) AddUnmatched(r *Request, routes []string) {
	t.count(r)
	t.report.Unmatched++
	key := strings.Join(routes, "\x00")
	same := t.unmatched[key]
	if same == nil {
		if len(t.unmatched) == maxUnmatched {
			return
		}
		if t.unmatched == nil {
			t.unmatched = map[string]*Unmatched{}
		}
		same = &Unmatched{Routes: routes, First: fmt.Sprintf("%s:%d", r.Log.Name, r.Line)}
		t.unmatched[key] = same
	}
	same.Requests++
}

// AddUndecided counts a request that could not be decided.
func (t *Tally) AddUndecided(r *Request) {
	t.count(r)
	t.report.Undecided++
}

// count counts a request.
func (t *Tally) count(r *Request) {
	if t.report.Requests == 0 {
		t.first = r.At
	}
	t.last = r.At
	t.report.Requests++
}

// compare compares a decision with the status in the log.
func (t *Tally) compare(r *Request, denied bool) {
	if r.Status == 0 {
		return
	}
	l, was := &t.report.Log, r.Status == http.StatusTooManyRequests
	l.Answered++
	switch {
	case was && denied:
		l.Both++
	case was:
		l.OnlyLog++
	case denied:
		l.OnlyReplay++
	}
	if was {
		l.Denied++
	}
}

// tenantOf returns the tenant of a request as a report names it.
func tenantOf(d *decision.Decision) string {
	if d.Identity.Tenant.Kind == identity.Tenant {
		return d.Identity.Tenant.ID
	}
	return Anonymous
}

// reasonOf returns the reason beside the bounds why a request is denied, or would be.
func reasonOf(d *decision.Decision) decision.Reason {
	if d.Denied() {
		return d.Reason
	}
	return d.ShadowReason
}

// addReason counts a denial for another reason than a bound.
func (t *Tally) addReason(r *Request, d *decision.Decision, tenant string, reason decision.Reason) {
	key := rowKey{tenant, "(" + reason.String() + ")", ""}
	w := t.rows[key]
	if w == nil {
		w = &row{Row: Row{Tenant: tenant, Tier: d.Resolution.Tier, Policy: key.policy, Mode: d.Mode.String()}}
		t.rows[key] = w
	}
	w.add(r, true, 0)
}

// addBound counts what bound i did to a request.
func (t *Tally) addBound(r *Request, d *decision.Decision, i int, tenant string) {
	b, status := &d.Resolution.Bounds[i], &d.Statuses[i]
	key := rowKey{tenant, b.Policy.Name, b.Policy.Endpoint}
	w := t.rows[key]
	if w == nil {
		if t.limits[b.Policy] == "" {
			t.limits[b.Policy] = b.Policy.Describe()
		}
		w = newRow(tenant, d.Resolution.Tier, b.Policy, t.limits[b.Policy])
		t.rows[key] = w
	}
	w.add(r, !status.Admits(), b.Cost)
}

// newRow returns the row of a policy.
func newRow(tenant, tier string, p *policy.Policy, inWords string) *row {
	spec := p.Limit.Spec()
	return &row{
		Row: Row{
			Tenant: tenant, Tier: tier, Policy: p.Name, Endpoint: p.Endpoint, Mode: p.Mode.String(), Limit: inWords,
		},
		window: spec.Window, limit: limitOf(tenant, p),
	}
}

// limitOf returns the quantity of a policy that counts a tenant as a whole, and 0 of one that counts parts of it, or
// several tenants.
func limitOf(tenant string, p *policy.Policy) int64 {
	whole := p.Scope == policy.Tenant || p.Scope == policy.TenantEndpoint && !p.ByRoute()
	if !whole || tenant == Anonymous {
		return 0
	}
	return p.Limit.Spec().Quantity
}

// add counts a request.
func (w *row) add(r *Request, denied bool, tokens int64) {
	w.Requests++
	if denied {
		if w.Denied++; w.Denied == 1 {
			at := instantTime(r.At)
			w.FirstDenied, w.FirstLine = &at, fmt.Sprintf("%s:%d", r.Log.Name, r.Line)
		}
	}
	if w.window == 0 {
		return
	}
	if number := int64(r.At / w.window); number != w.now.number {
		w.closeWindow()
		w.now = window{number: number}
	}
	w.now.requests++
	w.now.tokens += tokens
	if denied {
		w.now.denied++
	}
}

// closeWindow compares the window that is being counted with the worst so far.
func (w *row) closeWindow() {
	if w.now.worseThan(&w.worst) {
		w.worst = w.now
	}
}

// result returns the row for a report.
func (w *row) result() Row {
	w.closeWindow()
	if w.worst.requests > 0 {
		w.Worst = &Window{
			From: instantTime(limit.Micros(w.worst.number) * w.window), Seconds: int64(w.window / limit.Second),
			Requests: w.worst.requests, Denied: w.worst.denied, Tokens: w.worst.tokens,
			Percent: percent(w.worst.tokens, w.limit),
		}
	}
	return w.Row
}

// Report returns the report of all decisions so far, with the counts of the stream that they come from.
func (t *Tally) Report(counts Counts) *Report {
	report := t.report
	if report.Requests > 0 {
		report.From, report.To = instantTime(t.first), instantTime(t.last)
	}
	report.DeniedPct = percent(report.Denied, report.Requests)
	report.ShadowDeniedPct = percent(report.ShadowDenied, report.Requests)
	report.Most = []Sum{}
	for tenant, sum := range t.tenants {
		if sum.Denied > 0 {
			report.Most = append(report.Most, *sum)
		}
		if tenant == Anonymous {
			continue
		}
		if report.Tenants++; sum.Denied > 0 {
			report.Hurt++
		}
	}
	report.Most = sortSums(report.Most)
	report.Most = report.Most[:min(len(report.Most), maxSums)]
	report.Rows, report.Notes = make([]Row, 0, len(t.rows)), []string{}
	for _, w := range t.rows {
		report.Rows = append(report.Rows, w.result())
	}
	sortRows(report.Rows)
	report.Policies = sumPolicies(report.Rows)
	for _, routes := range t.unmatched {
		report.UnmatchedRoutes = append(report.UnmatchedRoutes, *routes)
	}
	sortUnmatched(report.UnmatchedRoutes)
	report.Counts, report.Series = counts, t.series.result()
	return &report
}

// maxSteps bounds the steps of a series.
const maxSteps = 240

// series counts requests in steps, which become longer as time goes on.
type series struct {
	step  limit.Micros
	begin int64 // the number of the first step since 1970
	steps []Point
}

// add counts a request. Requests come in the order of their times.
func (s *series) add(at limit.Micros, denied bool) {
	if s.step == 0 {
		s.step, s.begin = limit.Second, int64(at/limit.Second)
	}
	for int64(at/s.step)-s.begin >= maxSteps {
		s.double()
	}
	i := int(int64(at/s.step) - s.begin)
	for len(s.steps) <= i {
		s.steps = append(s.steps, Point{})
	}
	s.steps[i].Requests++
	if denied {
		s.steps[i].Denied++
	}
}

// double makes each step twice as long.
func (s *series) double() {
	var merged []Point
	for i, p := range s.steps {
		at := int((s.begin+int64(i))/2 - s.begin/2)
		for len(merged) <= at {
			merged = append(merged, Point{})
		}
		merged[at].Requests += p.Requests
		merged[at].Denied += p.Denied
	}
	s.step, s.begin, s.steps = 2*s.step, s.begin/2, merged
}

// result returns the series.
func (s *series) result() Series {
	result := Series{Step: float64(s.step) / float64(limit.Second), Points: []Point{}}
	for i, p := range s.steps {
		p.From = instantTime(limit.Micros(s.begin+int64(i)) * s.step)
		result.Points = append(result.Points, p)
	}
	return result
}
