package portal

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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

// serveDenials shows recent denials: in groups, one by one, or what denied one request, whatever the other filters.
func serveDenials(v *visit) error {
	filters := v.filters("request_id", "tenant", "policy", "endpoint", "view")
	data := map[string]any{"Filters": filters}
	err := v.readDenials(filters, data)
	if !v.caller.Routine { // the script keeps what it shows
		data["Unavailable"], err = unavailable(err)
	}
	if err != nil {
		return err
	}
	return v.render("operator_denials", "Denials", data)
}

// readDenials reads what serveDenials shows.
func (v *visit) readDenials(filters url.Values, data map[string]any) error {
	query := url.Values{"tenant": filters["tenant"], "policy": filters["policy"], "endpoint": filters["endpoint"]}
	if id := filters.Get("request_id"); id != "" || filters.Get("view") == "list" {
		path := "/v1/ratelimit/denials"
		if id != "" {
			path, query = path+"/"+answers.PathSegment(id), nil
		} else {
			query.Set("since", rangeOf(v.r).Name)
			query = v.withPage(query)
		}
		var found answers.DenialList
		err := v.get(path, query, &found)
		data["Found"], data["Next"] = found, nextPage(denialsPath, filters, found.Next)
		data["Live"] = v.r.URL.Query().Get("cursor") == "" && id == ""
		return err
	}
	query.Set("last", rangeOf(v.r).Name)
	query.Set("limit", strconv.Itoa(maxGroups))
	var groups answers.DenialGroups
	err := v.getShared("/v1/ratelimit/denial-groups", query, &groups)
	data["Groups"], data["Graph"], data["Max"], data["Live"] = groups.Items, denialsChart(&groups), maxGroups, true
	return err
}

// maxGroups bounds the groups of denials on a page.
const maxGroups = 200

// denialsChart returns the graph of groups of denials, all together.
func denialsChart(g *answers.DenialGroups) chart {
	step := time.Duration(g.Step) * time.Second
	denied, shadow := series{Name: "Denied", Class: "bad"}, series{Name: "Would be denied", Class: "caution"}
	for i := range g.Items {
		sum := &denied
		if g.Items[i].Shadow {
			sum = &shadow
		}
		for n, count := range g.Items[i].Counts {
			if n == len(sum.Points) {
				sum.Points = append(sum.Points, point{At: g.From.Add(time.Duration(n) * step)})
			}
			sum.Points[n].Value += count
		}
	}
	c := chart{Title: "Denials", Step: step}
	for _, s := range []series{denied, shadow} {
		if len(s.Points) > 0 {
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// trend returns counts over time as a small graph, with a word for where they go.
func trend(counts []int64) template.HTML {
	const height = 20
	most, half := max(slices.Max(append(counts, 1)), 1), len(counts)/2
	var line strings.Builder
	var sums [2]int64
	for i, count := range counts {
		fmt.Fprintf(&line, " %d,%d", i, height-count*(height-1)/most)
		if i < half {
			sums[0] += count
		} else {
			sums[1] += count
		}
	}
	word := "steady"
	switch {
	case sums[0]*2 < sums[1]:
		word = "rising"
	case sums[0] > sums[1]*2:
		word = "falling"
	}
	return template.HTML(fmt.Sprintf( // #nosec G203 -- digits only
		`<svg class="trend" viewBox="0 0 %[1]d %[2]d" preserveAspectRatio="none" aria-hidden="true">`+
			`<polyline points="%[3]s"/></svg><span class="dim">%[4]s</span>`,
		max(len(counts)-1, 1), height, line.String()[1:], word))
}

// endpointWords returns the endpoint of a denial; one without a name is of a request that matched none, or of several.
func endpointWords(d answers.Denial) string {
	switch {
	case d.Endpoint != "":
		return d.Endpoint
	case d.Reason == "others":
		return "several"
	}
	return "other requests"
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
	"others":          "Several limits, counted together",
}

// readOrgDenials reads recent denials of the org in groups, or why one request was denied, and what to do.
func readOrgDenials(v *visit) (map[string]any, error) {
	filters, span := v.filters("request_id", "endpoint"), periodNamed(denialSpans, v.r.FormValue("since"), 0)
	data := map[string]any{
		"Org": v.caller.Org, "Spans": denialSpans, "Span": span, "Endpoint": filters.Get("endpoint"), "Clients": clients,
		"Request": filters.Get("request_id"), "Max": maxGroups,
	}
	if id := filters.Get("request_id"); id != "" && !v.caller.Routine {
		var found answers.DenialList
		err := v.get("/v1/ratelimit/denials/"+answers.PathSegment(id), nil, &found)
		if err != nil && !isStatus(err, http.StatusNotFound) && !isStatus(err, http.StatusUnprocessableEntity) {
			return nil, err
		}
		data["Denied"] = found.Denials
	}
	query := url.Values{
		"endpoint": filters["endpoint"], "last": {span.Name}, "limit": {strconv.Itoa(maxGroups)},
	}
	var groups answers.DenialGroups
	err := v.get(v.orgPath("/ratelimit/denial-groups"), query, &groups)
	data["Groups"], data["Graph"] = groups.Items, denialsChart(&groups)
	return data, err
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
