package portal

import (
	"net/url"
	"slices"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// overviewView is the first page of an operator.
type overviewView struct {
	Missing   []string // why parts of the page are empty
	Fleet     fleet
	Near      answers.NearLimits
	Top       answers.UsageTop
	Abuse     []answers.AbuseState
	Denials   denialPage
	Candidate *answers.Candidate // the open one
}

// overviewRows is the number of rows of a list on the first page.
const overviewRows = 5

// serveOperatorOverview shows the state of the fleet, and what may need a look.
func serveOperatorOverview(v *visit) error {
	o := &overviewView{}
	few, first := url.Values{"limit": {strconv.Itoa(overviewRows)}}, &ranked{number: 1}
	var abuse answers.Page[answers.AbuseState]
	var candidates answers.CandidateList
	for _, read := range []func() error{
		func() error { return v.get("/v1/ratelimit/fleet", nil, &o.Fleet) },
		func() error { return v.readNearLimits(url.Values{}, first, &o.Near) },
		func() error { return v.readTop(url.Values{}, first, &o.Top) },
		func() error { return v.get("/v1/ratelimit/denials", few, &o.Denials) },
		func() error { return v.get("/v1/ratelimit/abuse", few, &abuse) },
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
	o.Near.Items = o.Near.Items[:min(len(o.Near.Items), overviewRows)]
	o.Top.Items = o.Top.Items[:min(len(o.Top.Items), overviewRows)]
	o.Fleet.countDegraded()
	o.Abuse = abuse.Items
	for i := range candidates.Items {
		if candidates.Items[i].State == "open" {
			o.Candidate = &candidates.Items[i]
		}
	}
	return v.render("operator_overview", "Overview", o)
}

// serveOverview serves the first page. That of a tenant is the page of its org.
func serveOverview(v *visit) error {
	if v.caller.Role == RoleTenant {
		return v.redirect("/portal/org", notice{})
	}
	return serveOperatorOverview(v)
}
