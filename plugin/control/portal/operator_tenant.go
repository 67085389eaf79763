package portal

import (
	"net/http"
	"net/url"

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
	return err
}

func (t *tenantView) readUsage(v *visit) (err error) {
	var found answers.Usage
	t.NoUsage, err = unavailable(v.get(orgAPI(t.Org, "/ratelimit/usage"), nil, &found))
	t.MoreUsage = max(0, len(found.Items)-maxBuckets)
	t.Usage = found.Items[:len(found.Items)-t.MoreUsage]
	return err
}

// readRequests reads the requests of a day.
func (t *tenantView) readRequests(v *visit) error {
	requests, err := v.history(t.Org, v.portal.Now().Add(-aDay.length), aDay.Step, nil)
	if err != nil {
		return err
	}
	points := pointsOf(requests, aDay.step(), func(r *answers.UsageRow) int64 { return r.Admitted + r.Denied })
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
