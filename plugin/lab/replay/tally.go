package replay

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Anonymous is the tenant of requests without one in a report.
const Anonymous = "(anonymous)"

type tally struct {
	report  Report
	rows    map[rowKey]*row
	tenants map[string]*Sum
	series  series

	unmatched map[string]*Unmatched // by their routes
}

type rowKey struct{ tenant, policy, endpoint string }

type row struct {
	Row
	counts *limit.Limit // nil: no windows
	limit  int64        // of the tenant in a window; 0: there is no such limit
	end    limit.Micros // of the window now
	now    Window
	worst  Window
}

// Run decides the requests of a stream and returns the report. decided, if it is not nil, is called with each decision;
// it must not keep it. If ctx ends, the report is of what was decided before, beside the error.
func Run(
	ctx context.Context, stream *Stream, gateway *Gateway, decided func(*Request, *decision.Decision),
) (*Report, error) {
	t := tally{rows: map[rowKey]*row{}, tenants: map[string]*Sum{}, unmatched: map[string]*Unmatched{}}
	err := stream.Each(ctx, func(r *Request) error {
		if t.report.To = instantTime(r.At); t.report.Requests == 0 {
			t.report.From = t.report.To
		}
		t.report.Requests++
		d, err := gateway.Decide(ctx, r)
		unmatched, isUnmatched := errors.AsType[*UnmatchedError](err)
		switch {
		case errors.Is(err, ErrUncovered):
			t.report.Uncovered++
			t.series.add(r.At, false)
		case isUnmatched:
			t.addUnmatched(r, unmatched.Routes)
		case err != nil:
			t.report.Undecided++
		default:
			t.add(r, d)
			if decided != nil {
				decided(r, d)
			}
		}
		return nil
	})
	t.finish()
	t.report.Counts, t.report.Evicted, t.report.WithoutTier = stream.Counts(), gateway.Evicted(), gateway.WithoutTier
	return &t.report, err
}

func (t *tally) add(r *Request, d *decision.Decision) {
	denied, reason := d.Denied() || d.ShadowDenied, d.ShadowReason
	if d.Denied() {
		t.report.Denied++
		reason = d.Reason
	} else if denied {
		t.report.ShadowDenied++
	}
	t.compare(r, d.Denied())
	tenant := Anonymous
	if d.Identity.Tenant.Kind == identity.Tenant {
		tenant = d.Identity.Tenant.ID
	}
	sum := t.tenants[tenant]
	if sum == nil {
		sum = &Sum{Name: tenant}
		t.tenants[tenant] = sum
	}
	if sum.Requests++; denied {
		sum.Denied++
	}
	if reason != decision.Counted { // beside the bounds
		t.rowOf(rowKey{tenant, "(" + reason.String() + ")", ""}, d, nil).add(r, true, 0)
	}
	for i := range d.Statuses {
		b := &d.Resolution.Bounds[i]
		t.rowOf(rowKey{tenant, b.Policy.Name, b.Policy.Endpoint}, d, b.Policy).add(r, !d.Statuses[i].Admits(), b.Cost)
	}
	t.series.add(r.At, denied)
}

func (t *tally) addUnmatched(r *Request, routes []string) {
	t.report.Unmatched++
	key := strings.Join(routes, "\x00")
	same := t.unmatched[key]
	if same == nil {
		if len(t.unmatched) == maxUnmatched {
			return
		}
		same = &Unmatched{Routes: routes, First: r.where()}
		t.unmatched[key] = same
	}
	same.Requests++
}

func (t *tally) compare(r *Request, denied bool) {
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

// rowOf returns the row of a policy, or that of another reason for denials, without a policy.
func (t *tally) rowOf(key rowKey, d *decision.Decision, p *policy.Policy) *row {
	w := t.rows[key]
	if w != nil {
		return w
	}
	w = &row{Row: Row{
		Tenant: key.tenant, Tier: d.Resolution.Tier, Policy: key.policy, Endpoint: key.endpoint, Mode: d.Mode.String(),
	}}
	t.rows[key] = w
	if p == nil {
		return w
	}
	spec := p.Limit.Spec()
	w.Mode, w.Limit = p.Mode.String(), p.Describe()
	if !p.Limit.IsConcurrency() {
		w.counts = &p.Limit
	}
	whole := p.Scope == policy.Tenant || p.Scope == policy.TenantEndpoint && !p.ByRoute()
	if whole && key.tenant != Anonymous { // else the limit counts parts of a tenant, or several
		w.limit = spec.Quantity
	}
	return w
}

func (w *row) add(r *Request, denied bool, tokens int64) {
	w.Requests++
	if denied {
		if w.Denied++; w.Denied == 1 {
			w.FirstDenied, w.FirstLine = new(instantTime(r.At)), r.where()
		}
	}
	if w.counts == nil {
		return
	}
	if r.At >= w.end {
		w.closeWindow()
		from, to := w.counts.PeriodAt(r.At)
		w.end, w.now = to, Window{From: instantTime(from), Seconds: int64((to - from) / limit.Second)}
	}
	w.now.Requests++
	w.now.Tokens += tokens
	if denied {
		w.now.Denied++
	}
}

// closeWindow keeps the window that is being counted if it has more denials than the worst so far, or as many and more
// tokens requested.
func (w *row) closeWindow() {
	if cmp.Or(cmp.Compare(w.now.Denied, w.worst.Denied), cmp.Compare(w.now.Tokens, w.worst.Tokens)) > 0 {
		w.worst = w.now
	}
}

func (w *row) result() Row {
	w.closeWindow()
	if w.worst.Requests > 0 {
		w.Worst = &w.worst
		w.Worst.Percent = percent(w.worst.Tokens, w.limit)
	}
	return w.Row
}

func (t *tally) finish() {
	report := &t.report
	report.DeniedPct = percent(report.Denied, report.Requests)
	report.ShadowDeniedPct = percent(report.ShadowDenied, report.Requests)
	report.Most, report.Rows, report.Notes = []Sum{}, make([]Row, 0, len(t.rows)), []string{}
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
	sortSums(report.Most)
	report.Most = report.Most[:min(len(report.Most), maxSums)]
	for _, w := range t.rows {
		report.Rows = append(report.Rows, w.result())
	}
	slices.SortFunc(report.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Tenant, b.Tenant),
			cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	report.Policies = sumPolicies(report.Rows)
	for _, routes := range t.unmatched {
		report.UnmatchedRoutes = append(report.UnmatchedRoutes, *routes)
	}
	slices.SortFunc(report.UnmatchedRoutes, func(a, b Unmatched) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Text(), b.Text()))
	})
	report.Series = t.series.result()
}

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

func (s *series) double() {
	merged := make([]Point, 0, len(s.steps))
	for i, p := range s.steps {
		at := int((s.begin+int64(i))/2 - s.begin/2)
		if at == len(merged) {
			merged = append(merged, Point{})
		}
		merged[at].Requests += p.Requests
		merged[at].Denied += p.Denied
	}
	s.step, s.begin, s.steps = 2*s.step, s.begin/2, merged
}

func (s *series) result() Series {
	result := Series{Step: float64(s.step) / float64(limit.Second), Points: []Point{}}
	for i, p := range s.steps {
		p.From = instantTime(limit.Micros(s.begin+int64(i)) * s.step)
		result.Points = append(result.Points, p)
	}
	return result
}
