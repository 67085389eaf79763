package portal

import (
	"cmp"
	"maps"
	"net/url"
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// serveTenants lists all tenants that have usage or a row, with their usage in the range of the page.
func serveTenants(v *visit) error {
	filters := v.filters("q", "tier", "sort", "reverse")
	page := v.rankedPage()
	query := page.query(filters)
	query.Del("q")
	if q := filters.Get("q"); q != "" {
		query.Set("prefix", q)
	}
	found, err := v.orgUsage(query)
	if err != nil {
		return err
	}
	found.Items = cutPage(v, page, filters, found.Items)
	columns := sortColumns(v.r.URL.EscapedPath(), filters)
	return v.render("operator_tenants", "Tenants", map[string]any{
		"Filters": filters, "Found": found, "Columns": columns, "Page": page,
	})
}

// sortColumn is a column of a list that can be sorted by it.
type sortColumn struct {
	Label, Href string
	IsNumber    bool
	Order       string // for readers who do not see it: ascending, descending or none
}

// sortColumns returns the columns of the list of tenants. The one that the list is sorted by leads to the other order.
func sortColumns(path string, filters url.Values) (columns []sortColumn) {
	sorted, isReverse := cmp.Or(filters.Get("sort"), "admitted"), filters.Get("reverse") == "true"
	for _, c := range pairs(
		"org_id", "Tenant", "tier", "Tier", "admitted", "Admitted", "denied", "Denied", "nearest", "Nearest limit",
		"overrides", "Overrides",
	) {
		query, column := maps.Clone(filters), sortColumn{Label: c[1], Order: "none"}
		column.IsNumber = c[0] != "org_id" && c[0] != "tier" && c[0] != "nearest"
		isText := c[0] == "org_id" || c[0] == "tier"
		query.Set("sort", c[0])
		query.Del("reverse")
		if c[0] == sorted {
			column.Order = map[bool]string{true: "ascending", false: "descending"}[isText != isReverse]
			if !isReverse {
				query.Set("reverse", "true")
			}
		}
		column.Href = path + "?" + query.Encode()
		columns = append(columns, column)
	}
	return columns
}

// serveTop ranks tenants by what they used.
func serveTop(v *visit) error {
	filters := v.filters("by", "policy")
	page := v.rankedPage()
	var found answers.UsageTop
	if err := v.readTop(filters, page, &found); err != nil {
		return err
	}
	found.Items = cutPage(v, page, filters, found.Items)
	return v.render("operator_top", "Top tenants", map[string]any{"Filters": filters, "Found": found, "Page": page})
}

// readTop reads the rows of a ranking up to a page, and sets the filters that are missing.
func (v *visit) readTop(filters url.Values, page *ranked, into *answers.UsageTop) error {
	setDefault(filters, "by", "admitted")
	query := page.query(filters)
	query.Set("last", rangeOf(v.r).Name)
	return v.getShared("/v1/ratelimit/usage/top", query, into)
}

// serveNearLimit shows the tenants that have used most of a limit lately.
func serveNearLimit(v *visit) error {
	filters := v.filters("above", "last")
	page := v.rankedPage()
	var found answers.NearLimits
	why, err := unavailable(v.readNearLimits(filters, page, &found))
	if err != nil {
		return err
	}
	found.Items = cutPage(v, page, filters, found.Items)
	return v.render("operator_near_limit", "Near limit", map[string]any{
		"Filters": filters, "Found": found, "Page": page, "Unavailable": why,
	})
}

// readNearLimits reads the tenants that are near a limit up to a page, and sets the filters that are missing.
func (v *visit) readNearLimits(filters url.Values, page *ranked, into *answers.NearLimits) error {
	setDefault(filters, "above", "0.8")
	setDefault(filters, "last", "10m")
	return v.getShared("/v1/ratelimit/near-limit", page.query(filters), into)
}

// setDefault sets a value that the query of the page lacks.
func setDefault(filters url.Values, name, value string) {
	if filters.Get(name) == "" {
		filters.Set(name, value)
	}
}

const (
	// rankedRows is the number of rows on a page of a list that has no cursor.
	rankedRows = 50
	// maxRanked bounds the rows of such a list, as the API does.
	maxRanked = 1000
)

// ranked is a page of a list that the API returns from its first row on, such as a ranking. Each page reads it again.
type ranked struct {
	First, Last int
	Next        string // the link of the next page; "": this is the last one
	More        bool   // the API may have more rows, which no page shows

	number int // from 1
}

// rankedPage returns the page in the query of the request.
func (v *visit) rankedPage() *ranked {
	number, err := strconv.Atoi(v.r.URL.Query().Get("page"))
	if err != nil {
		number = 1
	}
	return &ranked{number: min(max(number, 1), maxRanked/rankedRows)}
}

// query returns a query for the rows up to the end of the page, and one more.
func (p *ranked) query(filters url.Values) url.Values {
	query := maps.Clone(filters)
	query.Set("limit", strconv.Itoa(min(p.number*rankedRows+1, maxRanked)))
	return query
}

// cutPage returns the rows of a page, given those that its query found, and sets its numbers and links. If the list has
// become shorter, it returns the last page.
func cutPage[T any](v *visit, p *ranked, filters url.Values, rows []T) []T {
	p.number = min(p.number, max((len(rows)+rankedRows-1)/rankedRows, 1))
	first := (p.number - 1) * rankedRows
	last := min(first+rankedRows, len(rows))
	p.First, p.Last, p.More = first+1, last, last == maxRanked
	if len(rows) > last {
		query := maps.Clone(filters)
		query.Set("page", strconv.Itoa(p.number+1))
		p.Next = v.r.URL.EscapedPath() + "?" + query.Encode()
	}
	return rows[first:last]
}

// serveAbuse shows the tenants that abuse detection has flagged.
func serveAbuse(v *visit) error {
	filters := v.filters("step")
	page := v.rankedPage()
	var found answers.Page[answers.AbuseState]
	if err := v.get("/v1/ratelimit/abuse", page.query(filters), &found); err != nil {
		return err
	}
	return v.render("operator_abuse", "Abuse", map[string]any{
		"Filters": filters, "Items": cutPage(v, page, filters, found.Items), "Page": page, "CanWrite": v.isAdmin(),
	})
}
