package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const (
	overridesPath = "/v1/orgs/{org}/ratelimit/overrides"
	overridePath  = overridesPath + "/{id}"
)

// registerOverrides adds the operations on overrides.
func (s *Server) registerOverrides() {
	s.registerOrgOverrides()
	s.registerGeneralOverrides()
}

// registerOrgOverrides adds the operations on the overrides of one org.
func (s *Server) registerOrgOverrides() {
	tags := []string{"overrides"}
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "list-overrides", Method: http.MethodGet, Path: overridesPath, Tags: tags,
		Summary: "List the overrides of an org, ordered by id",
	}, orgAccess), s.listOverrides)
	huma.Register(s.api, operation(huma.Operation{
		OperationID:   "create-override",
		Method:        http.MethodPost,
		Path:          overridesPath,
		Tags:          tags,
		Summary:       "Create an override for an org: a limit of its own, a multiplier, a ban or an exemption",
		DefaultStatus: http.StatusCreated,
		Errors:        []int{http.StatusConflict},
	}, writeAccess), s.createOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "preview-override", Method: http.MethodPost, Path: overridesPath + "/preview", Tags: tags,
		Summary: "Show which limits of an org an override would change, and change nothing",
		Description: "The limits in force now, or when the override begins, beside those that would be in force then. An " +
			"override that has no effect changes none: another one goes before it, or it names a policy that does not apply.",
	}, readAccess), s.previewOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "get-override", Method: http.MethodGet, Path: overridePath, Tags: tags,
		Summary: "Get an override of an org", Responses: notModified(), Errors: []int{http.StatusNotFound},
	}, orgAccess), s.getOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-override", Method: http.MethodPut, Path: overridePath, Tags: tags,
		Summary: "Change an override of an org in place, such as its end", Description: putOverrideDescription,
		Errors: putOverrideErrors,
	}, writeAccess), s.putOverride)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "delete-override", Method: http.MethodDelete, Path: overridePath, Tags: tags,
		Summary: "End an override of an org", Errors: []int{http.StatusNotFound},
	}, writeAccess), s.deleteOverride)
}

type listOverridesInput struct {
	OrgPath
	Paging
	User       string `query:"user"       maxLength:"128"`
	Credential string `query:"credential" maxLength:"128"`
	IP         string `query:"ip"         maxLength:"64"`
	Kind       string `query:"kind"                       enum:"custom_limit,multiplier,ban,exempt"`
	Source     string `query:"source"                     enum:"commercial,detector,scheduled"`
	State      string `query:"state"                      enum:"scheduled,in_force,ended"               doc:"Only those that have not begun, are in force, or have expired and are not in the history yet."`
	Expired    bool   `query:"expired"                                                              doc:"Include overrides that have expired and are not in the history yet."`
}

type listOverridesOutput struct{ Body answers.Page[Override] }

func (s *Server) listOverrides(ctx context.Context, in *listOverridesInput) (*listOverridesOutput, error) {
	return s.overridesPage(ctx, &in.Paging, rows.OverrideFilter{
		Tenant: in.Org, User: in.User, Credential: in.Credential, IP: in.IP, Kind: in.Kind, Source: in.Source,
		State: in.State, NotEnded: !in.Expired && in.State == "",
	})
}

// overridesPage returns a page of the overrides that a filter selects.
func (s *Server) overridesPage(
	ctx context.Context, page *Paging, filter rows.OverrideFilter,
) (*listOverridesOutput, error) {
	filter.After, filter.Max = page.afterID(), page.Limit+1
	list, err := s.Rows.Overrides(ctx, filter)
	if err != nil {
		return nil, s.readError("list overrides", err)
	}
	items := make([]Override, len(list))
	for i, o := range list {
		items[i] = s.viewOf(callerOf(ctx)).override(o)
	}
	return &listOverridesOutput{newPage(items, page.Limit, func(o Override) int64 { return o.ID })}, nil
}

// OverrideID is the id of an override in a path.
type OverrideID struct {
	ID int64 `path:"id" minimum:"1" example:"7"`
}

type getOverrideInput struct {
	OrgPath
	OverrideID
	IfNoneMatch
}

func (s *Server) getOverride(ctx context.Context, in *getOverrideInput) (*getOutput[Override], error) {
	return s.answerOverride(ctx, in.Org, in.ID, in.IfNoneMatch)
}

func (s *Server) answerOverride(
	ctx context.Context, org string, id int64, unless IfNoneMatch,
) (*getOutput[Override], error) {
	o, err := s.overrideInOrg(ctx, org, id)
	if err != nil {
		return nil, s.readError("read an override", err)
	}
	return answerGet(unless, etag(o.ID, o.Revision), s.viewOf(callerOf(ctx)).override(o))
}

// overrideInOrg returns an override of an org, or with org "" one of all orgs. An override of another org is not found.
func (s *Server) overrideInOrg(ctx context.Context, org string, id int64) (rows.Override, error) {
	o, err := s.Rows.Override(ctx, id)
	if err == nil && o.Tenant != org {
		err = &rows.NotFoundError{What: fmt.Sprint("override ", id)}
	}
	return o, err
}

type createOverrideInput struct {
	OrgPath
	Once
	Waiting
	Body OverrideBody
}

// OverrideWritten is an override after a write.
type OverrideWritten struct {
	Override Override `json:"override"`
	answers.Written
}

type createOverrideOutput struct {
	ETag     string `header:"ETag"`
	Location string `header:"Location"            doc:"Where the override is."`
	Replayed string `header:"Idempotent-Replayed" doc:"true: nothing was written, because this is a retry of an answered request."`
	Body     OverrideWritten
}

func (s *Server) createOverride(ctx context.Context, in *createOverrideInput) (*createOverrideOutput, error) {
	c := in.newChange(ctx, in.Body.Reason, "create-override", in.Org, in.Body)
	at := fmt.Sprintf("/v1/orgs/%s/ratelimit/overrides/", pathSegment(in.Org))
	return s.addOverride(ctx, c, in.Org, &in.Body, in.wait(), at)
}

// addOverride adds an override of an org, or with org "" one of all orgs. Its path is its id after at.
func (s *Server) addOverride(
	ctx context.Context, c rows.Change, org string, body *OverrideBody, wait time.Duration, at string,
) (*createOverrideOutput, error) {
	o, err := body.override(org, s.Now())
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	added, version, err := s.Rows.AddOverride(ctx, c, o)
	if err != nil {
		return nil, s.writeError("make an override", err)
	}
	return &createOverrideOutput{
		ETag:     etag(added.ID, added.Revision),
		Location: at + strconv.FormatInt(added.ID, 10),
		Replayed: replayedHeader(c),
		Body: OverrideWritten{
			overrideOf(added),
			s.finishWrite(ctx, overrideWrites, version, wait, s.warnOfOverride(ctx, added)),
		},
	}, nil
}

// pathSegment returns a name as one segment of a path. It escapes dot segments too, which would lead elsewhere.
func pathSegment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

type deleteOverrideInput struct {
	OrgPath
	OverrideID
	Waiting
	Reason
}

func (s *Server) deleteOverride(ctx context.Context, in *deleteOverrideInput) (*deletedOutput, error) {
	return s.endOverride(ctx, in.Org, in.ID, in.Reason, in.wait())
}

// endOverride ends an override of an org, or with org "" one of all orgs.
func (s *Server) endOverride(
	ctx context.Context, org string, id int64, reason Reason, wait time.Duration,
) (*deletedOutput, error) {
	const action = "end an override"
	if _, err := s.overrideInOrg(ctx, org, id); err != nil {
		return nil, s.writeError(action, err)
	}
	version, err := s.Rows.EndOverride(ctx, newChange(ctx, reason.Reason), id)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	return &deletedOutput{s.finishWrite(ctx, overrideWrites, version, wait, answers.Warnings{})}, nil
}
