package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

var tierCommands = []*command{
	{
		words: "tier list", brief: "list the tiers in the database (plugin configs may define more)",
		define: lists[rows.Tier](tiersPath, rows.TierFilter{}),
	},
	{
		words: "tier put", args: "NAME", brief: "create or update a tier",
		define: func(c *call) action {
			description := c.flags.String("description", "", "the `text` that describes the tier")
			title := c.flags.String("title", "", "the `text` that tenants read in place of the name")
			price := c.flags.String("price-text", "", "the `text` that tells tenants the price")
			query := c.overFlag()
			return c.writes(func() change {
				return change{
					method: http.MethodPut, path: c.path(tierPath), query: query, body: object{
						"description": *description, "title": *title, "price_text": *price,
					},
					what: "put tier " + c.arg(), row: "tier",
				}
			})
		},
	},
	{
		words: "tier delete", args: "NAME", brief: "delete a tier; tenants and policies that name it are kept",
		define: deletes(tierPath, "deleted tier"),
	},
}

var tenantCommands = []*command{
	{
		words: "tenant list", brief: "list the tenants that have a tier or a time zone",
		define: lists[rows.Tenant](orgsPath, rows.TenantFilter{}),
	},
	{
		words: "tenant get", args: "ID", brief: "show the tier and time zone of a tenant",
		define: gets[rows.Tenant](orgPath),
	},
	{
		words: "tenant set", args: "ID", brief: "set the tier and time zone of a tenant",
		about: `Flags that are not given leave their fields unchanged. An empty one, such as --tier "", sets the default.`,
		define: func(c *call) action {
			var t rows.Tenant
			c.knownConfigFlag()
			fieldFlags(c, &t.Tenant, "id") // the argument
			query := c.overFlag()
			c.wrongIf(func() bool { return len(c.givenOf("tier", "time-zone")) == 0 },
				"--tier or --time-zone is required")
			return c.writesFound(func(ctx context.Context, rest *answers.Client) (change, error) {
				return c.setTenant(ctx, rest, t, query)
			})
		},
	},
	{
		words: "tenant delete", args: "ID",
		brief:  "delete the tier and time zone of a tenant; its policies and overrides are kept",
		define: deletes(orgPath, "deleted tenant"),
	},
}

const (
	tiersPath = "/v1/ratelimit/tiers"
	tierPath  = tiersPath + "/{}"
	orgsPath  = "/v1/orgs"
	orgPath   = orgsPath + "/{}"
)

// setTenant returns a change that sets the given fields of a tenant, and keeps the others. It writes only over the
// revision it read, so no concurrent change is lost.
func (c *call) setTenant(
	ctx context.Context, rest *answers.Client, t rows.Tenant, query url.Values,
) (change, error) {
	var current rows.Tenant
	err := rest.Get(ctx, c.path(orgPath), nil, &current)
	if p := answers.ProblemOf(err); err != nil && (p == nil || p.Status != http.StatusNotFound) {
		return change{}, err
	}
	if !c.given("tier") {
		t.Tier = current.Tier
	}
	if !c.given("time-zone") {
		t.TimeZone = current.TimeZone
	}
	if query.Del("overwrite"); current.Revision > 0 && !query.Has("revision") {
		query.Set("revision", fmt.Sprint(current.Revision))
	}
	return change{
		method: http.MethodPut, path: c.path(orgPath), query: query, body: t.Tenant,
		what: "set tenant " + c.arg(), row: "org",
	}, nil
}

// listed returns a list that is [] in JSON when it is empty.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
