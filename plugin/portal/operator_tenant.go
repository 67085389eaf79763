package portal

import (
	"net/http"
	"net/url"
	"time"
)

// limitsInForce is which limits are in force for a tenant, and why.
type limitsInForce struct {
	Tier       string    `json:"tier"`
	Version    int64     `json:"policy_version"`
	At         time.Time `json:"at"`
	Summary    string    `json:"summary"`
	Limits     []inForce `json:"limits"`
	Exceptions []struct {
		Verdict string `json:"verdict"`
		Summary string `json:"summary"`
	} `json:"exceptions"`
	NotInForce []struct {
		Policy   string `json:"policy"`
		Endpoint string `json:"endpoint"`
		Limit    string `json:"limit"`
		Why      string `json:"why"`
	} `json:"not_in_force"`
	Overrides []overrideRow `json:"overrides"`
	Truncated *struct{}     `json:"truncated"`
}

// inForce is a limit in force.
type inForce struct {
	limitFacts
	Policy  string `json:"policy"`
	Mode    string `json:"mode"`
	Summary string `json:"summary"`

	Words string `json:"-"`
}

// overrideRow is an override of the requests of a tenant.
type overrideRow struct {
	ID       int64     `json:"id"`
	Kind     string    `json:"kind"`
	Target   string    `json:"target"`
	Endpoint string    `json:"endpoint"`
	From     time.Time `json:"from"`
	Until    time.Time `json:"until"`
	Reason   string    `json:"reason"`
	Author   string    `json:"author"`
	Applied  bool      `json:"applied"`
	Why      string    `json:"why"`
	General  bool      `json:"general"`
}

// usageNow is what a tenant has used of its limits.
type usageNow struct {
	Items []struct {
		Policy    string    `json:"policy"`
		Of        string    `json:"of"`
		Endpoint  string    `json:"endpoint"`
		Limit     int64     `json:"limit"`
		Used      int64     `json:"used"`
		Remaining int64     `json:"remaining"`
		Fraction  float64   `json:"fraction"`
		Reset     time.Time `json:"reset"`
		Mode      string    `json:"mode"`
		MayLease  bool      `json:"may_lease"`
	} `json:"items"`
}

// tenantView is the page of a tenant. A part that the API cannot return has the reason instead.
type tenantView struct {
	Org      string
	CanWrite bool

	Row       tenantRow
	Limits    limitsInForce
	NoLimits  string
	Usage     usageNow
	NoUsage   string
	MoreUsage int
	Graph     graph
	Denials   denialPage
	Abuse     abuseState
	HasAbuse  bool
}

// maxBuckets bounds the buckets on a page.
const maxBuckets = 50

// serveTenant shows a tenant: its limits in words, what it has used, its denials and its overrides.
func serveTenant(v *visit) error {
	t := tenantView{Org: v.org(), CanWrite: v.isAdmin()}
	for _, read := range []func(*visit) error{
		t.readRow, t.readLimits, t.readUsage, t.readRequests, t.readDenials, t.readAbuse,
	} {
		if err := read(v); err != nil {
			return err
		}
	}
	return v.render("operator_tenant", t.Org, &t)
}

// readRow reads the tier of the tenant. One without a row has the default.
func (t *tenantView) readRow(v *visit) error {
	err := v.get(orgAPI(t.Org, ""), nil, &t.Row)
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func (t *tenantView) readLimits(v *visit) (err error) {
	t.NoLimits, err = unavailable(v.get(orgAPI(t.Org, "/ratelimit/policies"), url.Values{"limit": {pageRows}}, &t.Limits))
	for i := range t.Limits.Limits {
		l := &t.Limits.Limits[i]
		l.Words = limitWords(l.limitFacts, t.Org)
	}
	return err
}

func (t *tenantView) readUsage(v *visit) (err error) {
	t.NoUsage, err = unavailable(v.get(orgAPI(t.Org, "/ratelimit/usage"), nil, &t.Usage))
	if items := t.Usage.Items; len(items) > maxBuckets {
		t.Usage.Items, t.MoreUsage = items[:maxBuckets], len(items)-maxBuckets
	}
	return err
}

// readRequests reads the requests of a day.
func (t *tenantView) readRequests(v *visit) error {
	var requests usageHistory
	query := historyQuery(v.portal.Now(), &aDay, "")
	if err := v.get(orgAPI(t.Org, "/ratelimit/usage/history"), query, &requests); err != nil {
		return err
	}
	points := pointsOf(requests, aDay.step(), func(r *usageRow) int64 { return r.Admitted + r.Denied })
	t.Graph = lineGraph(points, 0, "Requests of "+t.Org+" by minute")
	return nil
}

func (t *tenantView) readDenials(v *visit) error {
	_, err := unavailable(v.get(orgAPI(t.Org, "/ratelimit/denials"), url.Values{"limit": {"10"}}, &t.Denials))
	return err
}

func (t *tenantView) readAbuse(v *visit) error {
	err := v.get(orgAPI(t.Org, "/ratelimit/abuse"), nil, &t.Abuse)
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	t.HasAbuse = err == nil && t.Abuse.Step != "none" && t.Abuse.Step != ""
	return err
}
