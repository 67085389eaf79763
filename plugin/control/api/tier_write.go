package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const tierPath = "/v1/ratelimit/tiers/{name}"

// registerTiers adds the operations that write tiers.
func (s *Server) registerTiers() {
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "put-tier", Method: http.MethodPut, Path: tierPath, Tags: []string{orgsTag},
		Summary: "Create a tier, or replace its description", Errors: []int{http.StatusConflict},
	}, writeAccess), s.putTier)
	huma.Register(s.api, operation(huma.Operation{
		OperationID: "delete-tier", Method: http.MethodDelete, Path: tierPath, Tags: []string{orgsTag},
		Summary: "Delete a tier; orgs and policies that name it are kept",
		Errors:  []int{http.StatusNotFound, http.StatusConflict},
	}, writeAccess), s.deleteTier)
}

// TierName is the name of a tier in a path.
type TierName struct {
	Name string `path:"name" minLength:"1" maxLength:"64" example:"gold"`
}

// OverRevision is the revision that a write must find; 0: any.
type OverRevision struct {
	Revision int64 `query:"revision" minimum:"0" doc:"The revision that the row must have. Absent: any."`
}

// tierBody is a tier as a caller writes it.
type tierBody struct {
	Description string `json:"description,omitempty" maxLength:"1024"`
	Reason      string `json:"reason"                maxLength:"1024" doc:"Why; recorded in the audit." example:"a new plan"`
}

// Resolve implements [huma.Resolver].
func (b *tierBody) Resolve(huma.Context) []error {
	return append(reasonFaults("body.reason", b.Reason), notTexts("body", textField{"description", b.Description})...)
}

type putTierInput struct {
	TierName
	OverRevision
	Waiting
	Body tierBody
}

// TierWritten is a tier after a write.
type TierWritten struct {
	Tier rows.Tier `json:"tier"`
	answers.Written
}

type putTierOutput struct{ Body TierWritten }

func (s *Server) putTier(ctx context.Context, in *putTierInput) (*putTierOutput, error) {
	t, version, err := s.Rows.PutTier(ctx, newChange(ctx, in.Body.Reason), rows.Tier{
		Name: in.Name, Description: in.Body.Description, Revision: in.Revision,
	})
	if err != nil {
		return nil, s.writeError("put a tier", err)
	}
	return &putTierOutput{TierWritten{t, s.finishWrite(ctx, orgWrites, version, in.wait(), answers.Warnings{})}}, nil
}

type deleteTierInput struct {
	TierName
	OverRevision
	Waiting
	Reason
}

func (s *Server) deleteTier(ctx context.Context, in *deleteTierInput) (*deletedOutput, error) {
	version, err := s.Rows.DeleteTier(ctx, newChange(ctx, in.Reason.Reason), in.Name, in.Revision)
	if err != nil {
		return nil, s.writeError("delete a tier", err)
	}
	return &deletedOutput{s.finishWrite(ctx, orgWrites, version, in.wait(), answers.Warnings{})}, nil
}
