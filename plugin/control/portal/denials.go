package portal

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/docs"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// denialsPath is the page of recent denials in the console.
const denialsPath = home + "denials"

// requestID matches what Kong names requests by.
var requestID = regexp.MustCompile("^[0-9a-f]{32}$")

// overrideID matches the id of an override, as pages and the API name one.
var overrideID = regexp.MustCompile("^#?[0-9]{1,18}$")

// serveSearch leads to what denied a request, to an override or to a tenant. Of a number, the tenant goes first.
func serveSearch(v *visit) error {
	q := strings.TrimSpace(v.r.URL.Query().Get("q"))
	switch {
	case q == "":
		return v.redirect(home+"tenants", notice{})
	case requestID.MatchString(q):
		return v.redirect(denialsPath+"?request_id="+q, notice{})
	case overrideID.MatchString(q):
		var orgs answers.Page[answers.Tenant]
		err := v.get("/v1/orgs", url.Values{"usage": {"true"}, "prefix": {q}, "limit": {"1"}}, &orgs)
		if err != nil {
			return err
		}
		if len(orgs.Items) == 0 || orgs.Items[0].ID != q {
			return v.findOverride(q)
		}
	}
	return v.redirect(tenantPath(q, ""), notice{})
}

// findOverride leads to the changes of an override, which the audit has also after its end.
func (v *visit) findOverride(q string) error {
	query := url.Values{"kind": {"override"}, "key": {strings.TrimPrefix(q, "#")}, "limit": {"1"}}
	var found answers.Page[answers.AuditEntry]
	switch err := v.get("/v1/ratelimit/audit", query, &found); {
	case err != nil:
		return err
	case len(found.Items) == 0:
		return v.redirect(tenantPath(q, ""), notice{})
	case found.Items[0].Operation != "delete" && found.Items[0].Tenant != "":
		return v.redirect(tenantPath(found.Items[0].Tenant, "#overrides"), notice{})
	}
	query.Del("limit")
	return v.redirect(home+"audit?"+query.Encode(), notice{})
}

// serveDenials shows recent denials, or what denied one request, whatever the other filters. The first page is live.
func serveDenials(v *visit) error {
	filters := v.filters("request_id", "tenant", "policy", "endpoint", "since")
	path, query, id := "/v1/ratelimit/denials", v.withPage(filters), filters.Get("request_id")
	if id != "" {
		path, query = path+"/"+answers.PathSegment(id), nil
	}
	var found answers.DenialList
	err := v.get(path, query, &found)
	why := ""
	if !v.caller.Routine { // the script keeps what it shows
		why, err = unavailable(err)
	}
	if err != nil {
		return err
	}
	return v.render("operator_denials", "Denials", map[string]any{
		"Filters": filters, "Found": found, "Next": nextPage(denialsPath, filters, found.Next), "Unavailable": why,
		"Live": v.r.URL.Query().Get("cursor") == "" && id == "",
	})
}

// denialWords returns which limit denied, or why none decided.
func denialWords(d answers.Denial) string {
	if d.Reason != "quota" && d.Reason != "fair_share" {
		return reasonWords[d.Reason]
	}
	switch {
	case d.Limit == nil:
		return "(a limit whose numbers you cannot see)"
	case d.Window == "":
		return amountWords(*d.Limit, d.Unit) + " at once"
	}
	return amountWords(*d.Limit, d.Unit) + " per " + spanWords(d.Window)
}

// spanWords returns a length of time of the API in words, such as "10 minutes" for "10m"; "" for none.
func spanWords(span string) string {
	for _, u := range units {
		count, found := strings.CutSuffix(span, u.name[:1])
		if n, err := strconv.ParseInt(count, 10, 64); found && err == nil {
			return windowWords(n * u.seconds)
		}
	}
	return span
}

// reasonWords has the reasons of denials without a limit, in words.
var reasonWords = map[string]string{
	"banned":          "Requests are banned.",
	"tenant_missing":  "The request did not name your organization.",
	"user_missing":    "The request did not name a user.",
	"header_repeated": "A header that names the organization or the user was sent twice.",
	"model_unpriced":  "The model of the request has no price.",
	"meta_limited":    "Too many requests at once.",
	"store_away":      "The limit could not be checked.",
	"internal_fault":  "The request could not be decided.",
	"config_fault":    "The request could not be decided.",
	"others":          "Several limits; there were too many denials to list each.",
}

// readOrgDenials reads recent denials of the org, and what to do. The first page is live.
func readOrgDenials(v *visit) (map[string]any, error) {
	filters, span := v.filters("endpoint"), periodNamed(denialSpans, v.r.FormValue("since"), 0)
	filters.Set("since", span.Name)
	query := v.withPage(filters)
	query.Set("limit", "100")
	var found answers.DenialList
	err := v.get(v.orgPath("/ratelimit/denials"), query, &found)
	return map[string]any{
		"Org": v.caller.Org, "Spans": denialSpans, "Span": span, "Endpoint": filters.Get("endpoint"), "Clients": clients,
		"Live": !query.Has("cursor"), "Denials": found.Denials, "Sampled": found.Sampled,
		"Next": nextPage(orgDenialsPath, filters, found.Next),
	}, err
}

// client is a program that waits as long as a denial says.
type client struct{ Language, Text string }

// clients are the programs of docs/integration.md, whose tests run them.
var clients = clientsIn(docs.Integration)

// codeBlock matches a block of code in Markdown, with its language.
var codeBlock = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// clientsIn returns the programs of a page in Markdown.
func clientsIn(page string) (found []client) {
	names := map[string]string{"bash": "curl", "go": "Go", "python": "Python", "javascript": "JavaScript"}
	for _, block := range codeBlock.FindAllStringSubmatch(page, -1) {
		if name, ok := names[block[1]]; ok {
			found = append(found, client{name, strings.TrimSuffix(block[2], "\n")})
		}
	}
	return found
}
