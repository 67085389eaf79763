package portal

import (
	"net/url"
	"slices"
)

// overviewView is the first page of an operator.
type overviewView struct {
	Missing   []string // why parts of the page are empty
	Fleet     fleet
	Near      nearLimits
	Top       ranking
	Abuse     []abuseState
	Denials   denialPage
	Candidate *candidate // the open one
}

// overviewRows is the number of rows of a list on the first page.
const overviewRows = "5"

// serveOperatorOverview shows the state of the fleet, and what may need a look.
func serveOperatorOverview(v *visit) error {
	o := &overviewView{}
	few := url.Values{"limit": {overviewRows}}
	var abuse struct {
		Items []abuseState `json:"items"`
	}
	var candidates struct {
		Items []candidate `json:"items"`
	}
	for _, part := range []struct {
		path  string
		query url.Values
		into  any
	}{
		{"/v1/ratelimit/fleet", nil, &o.Fleet},
		{"/v1/ratelimit/near-limit", few, &o.Near},
		{"/v1/ratelimit/usage/top", few, &o.Top},
		{"/v1/ratelimit/denials", few, &o.Denials},
		{"/v1/ratelimit/abuse", few, &abuse},
		{"/v1/ratelimit/candidates", nil, &candidates},
	} {
		missing, err := unavailable(v.get(part.path, part.query, part.into))
		if err != nil {
			return err
		}
		if missing != "" && !slices.Contains(o.Missing, missing) {
			o.Missing = append(o.Missing, missing)
		}
	}
	o.Abuse = abuse.Items
	for i := range candidates.Items {
		if candidates.Items[i].State == "open" {
			o.Candidate = &candidates.Items[i]
		}
	}
	return v.render("operator_overview", "Overview", o)
}
