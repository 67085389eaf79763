package portal

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/docs"
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
	why := ""
	if !v.caller.Routine { // the script keeps what it shows
		why, err = unavailable(err)
	}
	if err != nil {
		return err
	}
	return v.render("operator_denials", "Denials", map[string]any{
		"Filters": filters, "Found": found, "Unavailable": why,
		"Live": v.r.URL.Query().Get("cursor") == "" && !filters.Has("request_id"),
	})
}

// readDenials returns a page of denials, whose link follows the last of its rows.
func readDenials(v *visit) (*denialPage, error) {
	found, filters := &denialPage{}, v.filters(denialFilters...)
	if id := filters.Get("request_id"); id != "" {
		return found, v.get("/v1/ratelimit/denials/"+answers.PathSegment(id), nil, found)
	}
	err := v.get("/v1/ratelimit/denials", v.withPage(filters), found)
	found.Link = nextPage(denialsPath, filters, found.Next)
	return found, err
}

// denialWords returns which limit denied, or why none decided.
func denialWords(d answers.Denial) string {
	if d.Reason != "quota" && d.Reason != "fair_share" {
		return reasonWords[d.Reason]
	}
	if d.Limit == nil || d.Window == "" {
		return "(a limit whose numbers you cannot see)"
	}
	return humanize.Comma(*d.Limit) + " per " + spanWords(d.Window)
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
	"meta_limited":    "Too many requests at once.",
	"store_away":      "The limit could not be checked.",
	"internal_fault":  "The request could not be decided.",
	"config_fault":    "The request could not be decided.",
	"others":          "Several limits; there were too many denials to list each.",
}

// orgDenials is the page of recent denials.
type orgDenials struct {
	Org      string
	Live     bool // this is the first page
	Spans    []period
	Span     period
	Endpoint string
	Denials  []answers.Denial
	Sampled  bool
	Next     string // the path of the next page
	Clients  []client
}

// readOrgDenials reads recent denials of the org, and what to do.
func readOrgDenials(v *visit) (*orgDenials, error) {
	filters := v.filters("endpoint")
	data := &orgDenials{
		Org: v.caller.Org, Spans: denialSpans, Span: periodNamed(denialSpans, v.r.FormValue("since"), 0),
		Endpoint: filters.Get("endpoint"), Clients: clients,
	}
	filters.Set("since", data.Span.Name)
	query := v.withPage(filters)
	query.Set("limit", "100")
	data.Live = !query.Has("cursor")
	var found answers.DenialList
	if err := v.get(v.orgPath("/ratelimit/denials"), query, &found); err != nil {
		return nil, err
	}
	data.Denials, data.Sampled = found.Denials, found.Sampled
	data.Next = nextPage(orgDenialsPath, filters, found.Next)
	return data, nil
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
