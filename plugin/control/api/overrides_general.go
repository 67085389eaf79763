package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	generalOverridesPath = "/v1/ratelimit/overrides"
	generalOverridePath  = generalOverridesPath + "/{id}"
)

// registerGeneralOverrides adds the operations on the overrides that name no org and apply to the requests of all.
func (s *Server) registerGeneralOverrides() {
	tags := []string{"overrides"}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-all-overrides", Method: http.MethodGet, Path: generalOverridesPath, Tags: tags,
		Summary: "List the overrides of all orgs, and those that name no org, ordered by id",
	}, readAccess), s.listAllOverrides)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "create-general-override", Method: http.MethodPost, Path: generalOverridesPath, Tags: tags,
		Summary: "Create an override for the requests of all orgs: of a credential, an address or a network, " +
			"or an exemption of a tag or an endpoint",
		DefaultStatus: http.StatusCreated, Errors: []int{http.StatusConflict},
	}, writeAccess), s.createGeneralOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-general-override", Method: http.MethodGet, Path: generalOverridePath, Tags: tags,
		Summary: "Get an override that names no org", Responses: notModified(), Errors: []int{http.StatusNotFound},
	}, readAccess), s.getGeneralOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-general-override", Method: http.MethodPut, Path: generalOverridePath, Tags: tags,
		Summary: "Change an override that names no org in place", Description: putOverrideDescription,
		Errors: putOverrideErrors,
	}, writeAccess), s.putGeneralOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "delete-general-override", Method: http.MethodDelete, Path: generalOverridePath, Tags: tags,
		Summary: "End an override that names no org", Errors: []int{http.StatusNotFound},
	}, writeAccess), s.deleteGeneralOverride)
}

type listAllOverridesInput struct {
	Paging
	OfTenant
	General    bool   `query:"general"                                                               doc:"Only those that name no org."`
	User       string `query:"user"       maxLength:"128"`
	Policy     string `query:"policy"     maxLength:"64"`
	Credential string `query:"credential" maxLength:"128"`
	IP         string `query:"ip"         maxLength:"64"`
	Tag        string `query:"tag"        maxLength:"128"`
	Endpoint   string `query:"endpoint"   maxLength:"1024"`
	Kind       string `query:"kind"                        enum:"custom_limit,multiplier,ban,exempt"`
	Source     string `query:"source"                      enum:"commercial,detector,scheduled"`
	State      string `query:"state"                       enum:"scheduled,in_force,ended"               doc:"Only those that have not begun, are in force, or have expired and are not in the history yet."`
	Expired    bool   `query:"expired"                                                               doc:"Include overrides that have expired and are not in the history yet."`
}

func (s *Server) listAllOverrides(ctx context.Context, in *listAllOverridesInput) (*listOverridesOutput, error) {
	return s.overridesPage(ctx, &in.Paging, rows.OverrideFilter{
		Tenant: in.Tenant, General: in.General, User: in.User, Credential: in.Credential, IP: in.IP, Tag: in.Tag,
		Endpoint: in.Endpoint, Policy: in.Policy, Kind: in.Kind,
		Source: in.Source, State: in.State, NotEnded: !in.Expired && in.State == "",
	})
}

type getGeneralOverrideInput struct {
	OverrideID
	IfNoneMatch
}

func (s *Server) getGeneralOverride(ctx context.Context, in *getGeneralOverrideInput) (*getOutput[Override], error) {
	return s.answerOverride(ctx, "", in.ID, in.IfNoneMatch)
}

type createGeneralOverrideInput struct {
	Once
	Waiting
	Body OverrideBody
}

func (s *Server) createGeneralOverride(
	ctx context.Context, in *createGeneralOverrideInput,
) (*createOverrideOutput, error) {
	c := in.newChange(ctx, in.Body.Reason, "create-general-override", in.Body)
	return s.addOverride(ctx, c, "", &in.Body, in.wait(), generalOverridesPath+"/")
}

type deleteGeneralOverrideInput struct {
	OverrideID
	Waiting
	Reason
}

func (s *Server) deleteGeneralOverride(ctx context.Context, in *deleteGeneralOverrideInput) (*deletedOutput, error) {
	return s.endOverride(ctx, "", in.ID, in.Reason, in.wait())
}
