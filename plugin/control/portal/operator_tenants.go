package portal

import (
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// serveTenants lists the tenants that have usage or a row, and searches them by the begin of their name.
func serveTenants(v *visit) error {
	q := v.r.URL.Query().Get("q")
	query := url.Values{"usage": {"true"}}
	if q != "" {
		query.Set("prefix", q)
	}
	var found answers.Page[answers.Tenant]
	if err := v.get("/v1/orgs", v.withPage(query), &found); err != nil {
		return err
	}
	return v.render("operator_tenants", "Tenants", map[string]any{
		"Q": q, "Items": found.Items, "Next": nextPage(v.r.URL.Path, v.filters("q"), found.NextCursor),
	})
}

// serveTop ranks tenants by what they used.
func serveTop(v *visit) error {
	filters := v.filters("by", "last", "policy")
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
	setDefault(filters, "last", "24h")
	return v.getCached("/v1/ratelimit/usage/top", page.query(filters), into)
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
	return v.getCached("/v1/ratelimit/near-limit", page.query(filters), into)
}

// setDefault sets a value that the query of the page lacks.
func setDefault(filters url.Values, name, value string) {
	if filters.Get(name) == "" {
		filters.Set(name, value)
	}
}
