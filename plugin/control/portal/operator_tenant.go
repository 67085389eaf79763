package portal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// tenantView is the page of a tenant. A part that the API cannot return has the reason instead.
type tenantView struct {
	Org      string
	CanWrite bool

	Row           answers.Tenant
	Limits        answers.InForce
	NoLimits      string
	Usage         []answers.BucketUsage
	NoUsage       string
	MoreUsage     int
	MoreOverrides bool // overrides than are shown
	Policies      []string
	Policy        string // that the graph shows; "": all requests
	Words         string // its limit
	Apart         bool   // the limit has no line, because the graph does not count what one of its buckets does
	Graph         chart
	Total         useSum
	Denials       answers.DenialList
	Abuse         answers.AbuseState
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
	if err := cmp.Or(t.readGraph(v), t.addOverrides(v)); err != nil {
		return err
	}
	return v.render("operator_tenant", t.Org, t)
}

// addOverrides adds the overrides that requests of no user and no endpoint do not meet.
func (t *tenantView) addOverrides(v *visit) error {
	var list answers.Page[struct {
		answers.OverrideInForce

		User, Credential, IP, State string
		Starts                      time.Time `json:"starts_at"`
		Ends                        time.Time `json:"expires_at"`
	}]
	_, err := unavailable(v.get(orgAPI(t.Org, "/ratelimit/overrides"), url.Values{"limit": {pageRows}}, &list))
	for i := range list.Items {
		o := &list.Items[i]
		isListed := func(other answers.OverrideInForce) bool { return other.ID == o.ID }
		if slices.ContainsFunc(t.Limits.Overrides, isListed) {
			continue
		}
		o.Target = "tenant"
		for _, subject := range pairs("user", o.User, "credential", o.Credential, "address", o.IP) {
			if subject[1] != "" {
				o.Target = subject[0] + " " + subject[1]
			}
		}
		o.From, o.Until, o.Applied, o.Why = o.Starts, o.Ends, o.State == "in_force", "to its requests"
		t.Limits.Overrides = append(t.Limits.Overrides, o.OverrideInForce)
	}
	t.MoreOverrides = list.NextCursor != ""
	return err
}

// readGraph reads the requests of the tenant over time, or what it used of the policy that the page's query names.
func (t *tenantView) readGraph(v *visit) error {
	span, now := rangeOf(v.r), v.portal.Now()
	t.Policies, t.Policy = policiesOf(t.Limits.Limits), v.r.URL.Query().Get("policy")
	var chosen answers.LimitInForce // the first one of the policy
	isChosen := func(l answers.LimitInForce) bool { return l.Policy == t.Policy }
	if at := slices.IndexFunc(t.Limits.Limits, isChosen); at >= 0 {
		chosen = t.Limits.Limits[at]
		t.Words = limitWords(&chosen, t.Org)
	}
	t.Apart = t.Words != "" && !isOwnTotal(&chosen)
	from, window := span.from(now), t.windowOf(&chosen)
	if window > span.bucket {
		if chosen.Period != "" {
			window += day // a month may have 31
		}
		span = span.reaching(window)
	}
	more := url.Values{}
	if t.Policy != "" {
		more.Set("policy", t.Policy)
	}
	history, err := v.history(t.Org, span.from(now), span.Step, more)
	if err != nil {
		return err
	}
	for i := range history.Items {
		if history.Items[i].At.Add(span.bucket).After(from) {
			t.Total.add(sumOf(&history.Items[i]))
		}
	}
	t.Graph = t.graph(&history, &chosen, span.bucket, from)
	changes, err := v.changesOfLimits(from, t.Org)
	t.Graph.Marks = marksOf(changes)
	t.Graph.Bands = bandsOf(t.Limits.Overrides, t.Policy, changes)
	return err
}

// bandsOf returns the bands of the overrides that concern a policy, or all for "". One that was made since the first
// change begins with it.
func bandsOf(overrides []answers.OverrideInForce, policy string, changes []answers.AuditEntry) (bands []chartBand) {
	for _, o := range overrides {
		isOther := policy != "" && o.Policy != "" && o.Policy != policy
		if isOther || len(bands) == maxBands {
			continue
		}
		for i := range changes {
			e := &changes[i]
			if e.Kind == "override" && e.Operation == "insert" && e.Key == fmt.Sprint(o.ID) && o.From.IsZero() {
				o.From = e.At
			}
		}
		bands = append(bands, chartBand{fmt.Sprintf("override %d: %s", o.ID, overrideWords(o)), o.From, o.Until})
	}
	return bands
}

const (
	maxBands = 5
	maxMarks = 20
)

// windowOf returns over which time a limit counts what the graph does; 0: over none, such as that of requests at once,
// or of a week whose begin is not that of the calendar.
func (t *tenantView) windowOf(l *answers.LimitInForce) time.Duration {
	if t.Apart || l.MaxDuration != 0 || l.Anchor != nil && l.Anchor.Weekday != "" {
		return 0
	}
	return time.Duration(l.Seconds()) * time.Second
}

// graph returns the graph from a time on. A window that is longer than a bar is shown as it fills.
func (t *tenantView) graph(
	history *answers.UsageHistory, l *answers.LimitInForce, bucket time.Duration, from time.Time,
) chart {
	if t.Policy == "" {
		c := requestsChart(history, bucket)
		most, name := limitOfStep(t.Limits.Limits, bucket)
		c.limit(name, most)
		return c
	}
	spent := pointsOf(*history, bucket, func(r *answers.UsageRow) int64 { return orZero(r.Cost) })
	window := t.windowOf(l)
	c := &chart{Title: "Used of " + t.Policy, Step: bucket, Series: []series{{"Used", "accent", spent}}}
	if window > bucket {
		sums := windowSums(spent, beginOf(l.Window, l.Algorithm == "fixed_window"))
		shown := slices.IndexFunc(sums, func(p point) bool { return p.At.Add(bucket).After(from) })
		c = levelChart(c.Title, sums[max(shown, 0):], bucket)
		c.limit(l.Policy, l.Limit)
	} else if window > 0 {
		c.limit(l.Policy, l.Limit*int64(bucket/window))
	}
	c.Unit = cmp.Or(l.Unit, t.Total.Unit)
	return *c
}

// changesOfLimits reads the last changes since a time of what a tenant may do, or all tenants for "".
func (v *visit) changesOfLimits(since time.Time, tenant string) (changes []answers.AuditEntry, err error) {
	query := url.Values{"since": {since.Format(time.RFC3339)}, "limit": {pageRows}}
	if tenant != "" {
		query.Set("tenant", tenant)
	}
	var found answers.Page[answers.AuditEntry]
	if _, err := unavailable(v.get("/v1/ratelimit/audit", query, &found)); err != nil {
		return nil, err
	}
	isOther := func(e answers.AuditEntry) bool { return !slices.Contains(kindsOfLimits, e.Kind) }
	return slices.DeleteFunc(found.Items, isOther), nil
}

// marksOf returns the marks of the last changes.
func marksOf(changes []answers.AuditEntry) (marks []chartMark) {
	for i := range changes[:min(len(changes), maxMarks)] {
		marks = append(marks, chartMark{auditWords(&changes[i]), changes[i].At})
	}
	return marks
}

// kindsOfLimits are the kinds of rows of the audit by which limits change.
var kindsOfLimits = []string{"tier", "tenant", "policy", "override", "cost", "price"}

// auditWords returns what an entry of the audit did, and who: "policy daily of acme changed by token:ann".
func auditWords(e *answers.AuditEntry) string {
	what := e.Kind + " " + e.Key
	var row struct{ Name string }
	for _, state := range []json.RawMessage{e.Before, e.After} {
		if json.Unmarshal(state, &row) == nil && row.Name != "" {
			what = e.Kind + " " + row.Name
		}
	}
	if e.Tenant != "" && e.Kind != "tenant" {
		what += " of " + e.Tenant
	}
	done := map[string]string{"insert": "added", "update": "changed", "delete": "removed"}[e.Operation]
	return fmt.Sprintf("%s %s by %s", what, done, e.Actor)
}

// isOwnTotal reports whether a tenant has one bucket of a limit, so that its history is that of the bucket.
func isOwnTotal(l *answers.LimitInForce) bool { return l.Scope == "tenant" }

// policiesOf returns the names of the policies of limits, each once.
func policiesOf(limits []answers.LimitInForce) (names []string) {
	for i := range limits {
		if name := limits[i].Policy; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
