package portal

import (
	"net/url"
	"time"
)

// tenantRow is a tenant with its tier, as the API returns it.
type tenantRow struct {
	ID       string `json:"id"`
	Tier     string `json:"tier"`
	TimeZone string `json:"time_zone"`
}

// serveTenants lists the tenants that have usage or a row, and searches them by the begin of their name.
func serveTenants(v *visit) error {
	q := v.r.URL.Query().Get("q")
	query := url.Values{"usage": {"true"}}
	if q != "" {
		query.Set("prefix", q)
	}
	var found struct {
		Items []tenantRow `json:"items"`
		Next  string      `json:"next_cursor"`
	}
	if err := v.get("/v1/orgs", v.withPage(query), &found); err != nil {
		return err
	}
	return v.render("operator_tenants", "Tenants", map[string]any{
		"Q": q, "Items": found.Items, "Next": nextPage(v.r.URL.Path, v.filters("q"), found.Next),
	})
}

// ranking is the tenants that used most.
type ranking struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Items []struct {
		Org          string `json:"org_id"`
		Admitted     int64  `json:"admitted"`
		Soft         int64  `json:"soft"`
		Denied       int64  `json:"denied"`
		ShadowDenied int64  `json:"shadow_denied"`
		Cost         int64  `json:"cost"`
	} `json:"items"`
}

// serveTop ranks tenants by what they used.
func serveTop(v *visit) error {
	filters := v.filters("by", "last", "policy")
	page := v.rankedPage()
	var found ranking
	if err := v.readTop(filters, page, &found); err != nil {
		return err
	}
	found.Items = cutPage(v, page, filters, found.Items)
	return v.render("operator_top", "Top tenants", map[string]any{"Filters": filters, "Found": found, "Page": page})
}

// readTop reads the rows of a ranking up to a page, and sets the filters that are missing.
func (v *visit) readTop(filters url.Values, page *ranked, into *ranking) error {
	setDefault(filters, "by", "admitted")
	setDefault(filters, "last", "24h")
	return v.getCached("/v1/ratelimit/usage/top", page.query(filters), into)
}

// nearLimits is the tenants that have used most of a limit.
type nearLimits struct {
	Since time.Time `json:"since"`
	Items []struct {
		Org       string    `json:"org_id"`
		Policy    string    `json:"policy"`
		Endpoint  string    `json:"endpoint"`
		Scope     string    `json:"scope"`
		Mode      string    `json:"mode"`
		Limit     int64     `json:"limit"`
		Remaining int64     `json:"remaining_min"`
		Fraction  float64   `json:"fraction"`
		At        time.Time `json:"at"`
	} `json:"items"`
}

// serveNearLimit shows the tenants that have used most of a limit lately.
func serveNearLimit(v *visit) error {
	filters := v.filters("above", "last")
	page := v.rankedPage()
	var found nearLimits
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
func (v *visit) readNearLimits(filters url.Values, page *ranked, into *nearLimits) error {
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
