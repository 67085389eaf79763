package portal

import (
	"regexp"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// denialPage is a page of recent denials.
type denialPage struct {
	answers.DenialList
	Link string // of the next page of the console; "": this is the last one
}

// denialFilters are the filters of denials. With a request no other one counts.
var denialFilters = []string{"request_id", "tenant", "policy", "endpoint", "since"}

// denialsPath is the page of recent denials in the console.
const denialsPath = home + "denials"

// requestID matches what Kong names requests by.
var requestID = regexp.MustCompile("^[0-9a-f]{32}$")

// serveSearch leads to what denied a request, or to a tenant.
func serveSearch(v *visit) error {
	q := strings.TrimSpace(v.r.URL.Query().Get("q"))
	switch {
	case q == "":
		return v.redirect(home+"tenants", notice{})
	case requestID.MatchString(q):
		return v.redirect(denialsPath+"?request_id="+q, notice{})
	}
	return v.redirect(tenantPath(q, ""), notice{})
}

// serveDenials shows recent denials, or what denied one request. The first page is live.
func serveDenials(v *visit) error {
	filters := v.filters(denialFilters...)
	found, err := readDenials(v)
	why, err := unavailable(err)
	if err != nil {
		return err
	}
	live := ""
	if v.r.URL.Query().Get("cursor") == "" && !filters.Has("request_id") {
		live = livePath + "denials?" + filters.Encode()
	}
	return v.render("operator_denials", "Denials", map[string]any{
		"Filters": filters, "Found": found, "Live": live, "Unavailable": why,
	})
}

// readDenials returns a page of denials, whose link follows the last of its rows.
func readDenials(v *visit) (*denialPage, error) {
	found, filters := &denialPage{}, v.filters(denialFilters...)
	if id := filters.Get("request_id"); id != "" {
		return found, v.get("/v1/ratelimit/denials/"+pathSegment(id), nil, found)
	}
	err := v.get("/v1/ratelimit/denials", v.withPage(filters), found)
	found.Link = nextPage(denialsPath, filters, found.Next)
	return found, err
}
