package portal

// serveOverview serves the first page. That of a tenant is the page of its org.
func serveOverview(v *visit) error {
	if v.caller.Role == RoleTenant {
		return v.redirect("/portal/org", notice{})
	}
	return serveOperatorOverview(v)
}
