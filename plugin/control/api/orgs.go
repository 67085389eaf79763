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

// registerOrgs adds the operations on one org and on its limits in force.
func (s *Server) registerOrgs() {
	tags := []string{orgsTag}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-orgs", Method: http.MethodGet, Path: orgsPath, Tags: tags,
		Summary: "List the orgs that have a tier or a time zone, ordered by id",
	}, readAccess), s.listOrgs)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-tiers", Method: http.MethodGet, Path: "/v1/ratelimit/tiers", Tags: tags,
		Summary: "List the tiers in the database, ordered by name; the plugin's config may have others",
	}, readAccess), s.listTiers)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-org", Method: http.MethodGet, Path: orgPath, Tags: tags,
		Summary: "Get the tier and the time zone of an org", Responses: notModified(), Errors: []int{http.StatusNotFound},
	}, orgAccess), s.getOrg)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-org", Method: http.MethodPut, Path: orgPath, Tags: tags,
		Summary: "Set the tier and the time zone of an org, existing or new",
		Errors:  []int{http.StatusPreconditionFailed, http.StatusPreconditionRequired},
	}, writeAccess), s.putOrg)
	s.describeCreated(orgPath)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-org-policies", Method: http.MethodGet, Path: orgPath + "/ratelimit/policies", Tags: tags,
		Summary: "Show which limits are in force for an org, and why",
	}, orgAccess), s.inForce)
}

type getOrgInput struct {
	OrgPath
	IfNoneMatch
}

func (s *Server) getOrg(ctx context.Context, in *getOrgInput) (*getOutput[rows.Tenant], error) {
	org, err := s.Rows.Tenant(ctx, in.Org)
	if err != nil {
		return nil, s.readError("read an org", err)
	}
	return answerGet(in.IfNoneMatch, orgTag(org), org)
}

// orgTag returns the ETag of an org. It leaves out the name, which may contain characters that a header cannot.
func orgTag(org rows.Tenant) string { return fmt.Sprintf(`"org-%d"`, org.Revision) }

// orgBody has the settings of an org. Fields that are absent are unset.
type orgBody struct {
	schema.Tenant

	Revision int64  `json:"revision,omitempty"                  doc:"As returned by a read; a write ignores it and uses If-Match."`
	Reason   string `json:"reason,omitempty"   maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// TransformSchema describes the body.
func (*orgBody) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	describeInput(s, schema.FieldsWithout(schema.TenantFields(), "id"))
	s.Required = nil
	id, tier, zone := s.Properties["id"], s.Properties["tier"], s.Properties["time_zone"]
	id.Description, id.MaxLength = "As returned by a read; a write ignores it and uses the path.", new(maxName)
	tier.Description, tier.Examples = strings.Replace(tier.Description, "the tenant", "the org", 1), []any{"enterprise"}
	zone.Examples = []any{"Europe/Berlin"}
	return s
}

// Resolve implements [huma.Resolver]: it reports faults that the schema does not cover.
func (b *orgBody) Resolve(ctx huma.Context) []error {
	faults := notTexts("body", textField{"tier", b.Tier})
	desired := rows.Tenant{Tenant: b.Tenant}
	desired.ID = ctx.Param("org")
	for _, f := range desired.Faults() {
		switch f.Path {
		case "id": // the path's, whose faults are reported there
		case "time_zone":
			faults = append(faults, fault("body.time_zone", f.Message, b.TimeZone))
		default:
			faults = append(faults, fault("body."+f.Path, f.Message, nil))
		}
	}
	if b.Reason != "" {
		faults = append(faults, reasonFaults("body.reason", b.Reason)...)
	}
	return faults
}

type putOrgInput struct {
	OrgPath
	IfMatch
	IfNoneMatch
	Waiting
	Body orgBody
}

// OrgWritten is an org after a write.
type OrgWritten struct {
	Org rows.Tenant `json:"org"`
	answers.Written
}

type putOrgOutput struct {
	Status   int
	ETag     string `header:"ETag"`
	Location string `header:"Location" doc:"Where the org is."`
	Body     OrgWritten
}

// putOrg writes the settings of an org.
func (s *Server) putOrg(ctx context.Context, in *putOrgInput) (*putOrgOutput, error) {
	desired := rows.Tenant{Tenant: in.Body.Tenant}
	desired.ID = in.Org
	put := keyedPut[rows.Tenant]{
		IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch,
		absent:  "nothing is set for this org: omit If-Match to create it",
		present: "this org has settings already",
		read:    func() (rows.Tenant, error) { return s.Rows.Tenant(ctx, in.Org) },
		state:   func(org rows.Tenant) (string, int64) { return orgTag(org), org.Revision },
		isSame:  func(current rows.Tenant) bool { return current.Tenant == desired.Tenant },
		write: func(revision int64) (rows.Tenant, int64, error) {
			desired.Revision = revision
			return s.Rows.SetTenant(ctx, newChange(ctx, in.Body.Reason), desired)
		},
	}
	status, org, version, err := put.do()
	if err != nil {
		return nil, s.writeError("set an org", err)
	}
	return &putOrgOutput{
		Status: status, ETag: orgTag(org), Location: orgsPath + "/" + pathSegment(in.Org),
		Body: OrgWritten{org, s.finishWrite(ctx, orgWrites, version, in.wait(), s.warnOfOrg(ctx, org))},
	}, nil
}
