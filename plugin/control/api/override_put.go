package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const putOverrideDescription = "The override keeps its id and author. What it is about cannot change, nor its start once " +
	"it has begun. One that has ended does not change. The reason is that of the override, and of the change in the audit."

var putOverrideErrors = []int{
	http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed, http.StatusPreconditionRequired,
}

// putOverrideBody is an override as a caller changes it. It has all that a read returns.
type putOverrideBody struct {
	OverrideBody

	ID        int64     `json:"id,omitempty"`
	Org       string    `json:"org,omitempty"`
	Author    string    `json:"author,omitempty"`
	Source    string    `json:"source,omitempty"`
	State     string    `json:"state,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	Revision  int64     `json:"revision,omitempty"`
}

// TransformSchema describes the body.
func (b *putOverrideBody) TransformSchema(r huma.Registry, s *huma.Schema) *huma.Schema {
	author, source := s.Properties["author"], s.Properties["source"]
	s = b.OverrideBody.TransformSchema(r, s)
	s.Properties["author"], s.Properties["source"] = author, source
	for _, name := range []string{"id", "org", "author", "source", "state", "created_at"} {
		s.Properties[name].Description = "As returned by a read; a write ignores it."
	}
	s.Properties["revision"].Description = "As returned by a read; a write ignores it and uses If-Match."
	return s
}

type putOverrideInput struct {
	OrgPath
	OverrideID
	IfMatch
	Waiting
	Body putOverrideBody
}

type putGeneralOverrideInput struct {
	OverrideID
	IfMatch
	Waiting
	Body putOverrideBody
}

type putOverrideOutput struct {
	ETag string `header:"ETag"`
	Body OverrideWritten
}

func (s *Server) putOverride(ctx context.Context, in *putOverrideInput) (*putOverrideOutput, error) {
	return s.changeOverride(ctx, in.Org, in.ID, in.IfMatch, &in.Body.OverrideBody, in.wait())
}

func (s *Server) putGeneralOverride(ctx context.Context, in *putGeneralOverrideInput) (*putOverrideOutput, error) {
	return s.changeOverride(ctx, "", in.ID, in.IfMatch, &in.Body.OverrideBody, in.wait())
}

// changeOverride changes an override of an org, or with org "" one of all orgs.
func (s *Server) changeOverride(
	ctx context.Context, org string, id int64, match IfMatch, body *OverrideBody, wait time.Duration,
) (*putOverrideOutput, error) {
	const action = "change an override"
	current, err := s.overrideInOrg(ctx, org, id)
	if err != nil {
		return nil, s.writeError(action, err)
	}
	desired, err := body.override(org, s.Now())
	if err != nil {
		return nil, unprocessable(fault("body", err.Error(), nil))
	}
	desired.ID = id
	if desired.Revision, err = match.requiredRevision(etag(id, current.Revision), current.Revision); err != nil {
		return nil, err
	}
	changed, version, err := s.Rows.PutOverride(ctx, newChange(ctx, body.Reason), desired)
	if stale := new(rows.ConflictError); errors.As(err, &stale) && stale.Revision > 0 {
		return nil, staleError(etag(id, stale.Revision))
	}
	if err != nil {
		return nil, s.writeError(action, err)
	}
	return &putOverrideOutput{
		ETag: etag(changed.ID, changed.Revision),
		Body: OverrideWritten{
			overrideOf(changed),
			s.finishWrite(ctx, overrideWrites, version, wait, s.warnOfOverride(ctx, changed)),
		},
	}, nil
}
