package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	orgsPath = "/v1/orgs"
	orgPath  = orgsPath + "/{org}"
	orgsTag  = "orgs"
)

// OrgWritten is an org after a write.
type OrgWritten struct {
	Org rows.Tenant `json:"org"`
	answers.Written
}

type listOrgsInput struct {
	Paging[string]
	rows.TenantFilter
}

type listTiersInput struct {
	Paging[string]
	rows.TierFilter
}

type getOrgInput struct {
	OrgPath
	IfNoneMatch
}

func (s *Server) registerOrgs() {
	r := &resource[*OrgPath, rows.Tenant, rows.Tenant, OrgWritten]{
		place: &place{s, orgsPath, orgsTag, readAccess, writeAccess},
		// The name may contain characters that a header cannot.
		state:    func(org rows.Tenant) (string, int64) { return fmt.Sprintf(`"org-%d"`, org.Revision), org.Revision },
		location: func(org rows.Tenant) string { return orgsPath + "/" + answers.PathSegment(org.ID) },
		show:     asItIs[rows.Tenant],
		answer:   func(org rows.Tenant, w answers.Written) OrgWritten { return OrgWritten{org, w} },
		warn: func(ctx context.Context, org rows.Tenant) ([]string, error) {
			return s.Rows.TenantWarnings(ctx, s.configPlan(), org)
		},
	}
	list(s, r.operation("list-orgs", http.MethodGet, "", "List the orgs that have a tier or a time zone, ordered by id"),
		"list orgs", r.show, func(org rows.Tenant) string { return org.ID },
		func(ctx context.Context, in *listOrgsInput) ([]rows.Tenant, error) {
			in.After, in.Max = in.page()
			return s.Rows.Tenants(ctx, in.TenantFilter)
		})
	ofOrg := &place{s, orgPath, orgsTag, orgAccess, writeAccess}
	get[getOrgInput](r, ofOrg.operation("get-org", http.MethodGet, "", "Get the tier and the time zone of an org"),
		"read an org")
	put(r, ofOrg.operation("put-org", http.MethodPut, "", "Set the tier and the time zone of an org, existing or new"),
		s.putOrg)
	remove[deleteOrgInput](r, ofOrg.operation("delete-org", http.MethodDelete, "",
		"Unset the tier and the time zone of an org; its policies and overrides are kept", conditional...), "delete an org")
	serve(s, ofOrg.operation("get-org-policies", http.MethodGet, "/ratelimit/policies",
		"Show which limits are in force for an org, and why"), "show the limits in force", s.inForce)
}

// orgBody has the settings of an org. Fields that are absent are unset.
type orgBody struct {
	schema.Tenant

	Revision int64          `json:"revision,omitempty"                  doc:"As returned by a read; a write ignores it and uses If-Match."`
	Reason   optionalReason `json:"reason,omitempty"   maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*orgBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.FieldsWithout[schema.Tenant]("id"))
	s.Required = nil
	id, tier, zone := s.Properties["id"], s.Properties["tier"], s.Properties["time_zone"]
	id.Description, id.MaxLength = "As returned by a read; a write ignores it and uses the path.", new(maxName)
	tier.Description, tier.Examples = strings.Replace(tier.Description, "the tenant", "the org", 1), []any{"enterprise"}
	zone.Examples = []any{"Europe/Berlin"}
	return s
}

func (b *orgBody) Resolve(huma.Context) []error {
	desired := rows.Tenant{Tenant: b.Tenant}
	desired.ID = "any" // that of the path is checked there
	return faultsIn("body", desired.Faults())
}

type putOrgInput struct {
	OrgPath
	IfMatch
	IfNoneMatch
	Writing
	Body orgBody
}

func (s *Server) putOrg(ctx context.Context, in *putOrgInput) *write[rows.Tenant] {
	desired := rows.Tenant{Tenant: in.Body.Tenant}
	desired.ID = in.Org
	return &write[rows.Tenant]{
		action: "set an org",
		read:   func() (rows.Tenant, error) { return rows.Read[rows.Tenant](ctx, s.Rows, in.Org) },
		isSame: func(current rows.Tenant) bool { return current.Tenant == desired.Tenant },
		write: func(_ rows.Tenant, revision int64) (d done[rows.Tenant], err error) {
			desired.Revision = revision
			return d.with(s.Rows.SetTenant(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}

type deleteOrgInput struct {
	OrgPath
	IfMatch
	Writing
	Reason
}

const tiersPath = "/v1/ratelimit/tiers"

// TierWritten is a tier after a write.
type TierWritten struct {
	Tier rows.Tier `json:"tier"`
	answers.Written
}

func (s *Server) registerTiers() {
	const name = "/{name}"
	r := &resource[*TierName, rows.Tier, rows.Tier, TierWritten]{
		place:    &place{s, tiersPath, orgsTag, readAccess, writeAccess},
		state:    func(t rows.Tier) (string, int64) { return fmt.Sprintf(`"tier-%d"`, t.Revision), t.Revision },
		location: func(t rows.Tier) string { return tiersPath + "/" + answers.PathSegment(t.Name) },
		show:     asItIs[rows.Tier],
		answer:   func(t rows.Tier, w answers.Written) TierWritten { return TierWritten{t, w} },
	}
	list(s, r.operation("list-tiers", http.MethodGet, "",
		"List the tiers in the database, ordered by name; the plugin's config may have others"), "list tiers", r.show,
		func(t rows.Tier) string { return t.Name },
		func(ctx context.Context, in *listTiersInput) ([]rows.Tier, error) {
			in.After, in.Max = in.page()
			return s.Rows.Tiers(ctx, in.TierFilter)
		})
	put(r, r.operation("put-tier", http.MethodPut, name, "Create a tier, or replace its texts"), s.putTier)
	remove[deleteTierInput](r, r.operation("delete-tier", http.MethodDelete, name,
		"Delete a tier; orgs and policies that name it are kept", conditional...), "delete a tier")
}

// TierName is the name of a tier in a path.
type TierName struct {
	Name string `path:"name" minLength:"1" maxLength:"64" example:"gold"`
}

func (t *TierName) key() *TierName { return t }
func (t *TierName) rowKey() any    { return t.Name }

type tierBody struct {
	Description string         `json:"description,omitempty" maxLength:"1024"`
	Title       string         `json:"title,omitempty"       maxLength:"64"   doc:"What tenants read in place of the name." example:"Gold"`
	PriceText   string         `json:"price_text,omitempty"  maxLength:"256"  doc:"The price in words, for tenants to read." example:"$499 a month"`
	Reason      optionalReason `json:"reason,omitempty"      maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

type putTierInput struct {
	TierName
	IfMatch
	IfNoneMatch
	Writing
	Body tierBody
}

func (s *Server) putTier(ctx context.Context, in *putTierInput) *write[rows.Tier] {
	desired := rows.Tier{
		Name: in.Name, Description: in.Body.Description, Title: in.Body.Title, PriceText: in.Body.PriceText,
	}
	return &write[rows.Tier]{
		action: "put a tier",
		read:   func() (rows.Tier, error) { return rows.Read[rows.Tier](ctx, s.Rows, in.Name) },
		isSame: func(current rows.Tier) bool {
			current.Revision = desired.Revision
			return current == desired
		},
		write: func(_ rows.Tier, revision int64) (d done[rows.Tier], err error) {
			desired.Revision = revision
			return d.with(s.Rows.PutTier(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}

type deleteTierInput struct {
	TierName
	IfMatch
	Writing
	Reason
}
