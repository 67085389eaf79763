package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

const tiersPath = "/v1/ratelimit/tiers"

// TierWritten is a tier after a write.
type TierWritten struct {
	Tier rows.Tier `json:"tier"`
	answers.Written
}

// registerTiers adds the operations that write tiers.
func (s *Server) registerTiers() {
	const name = "/{name}"
	r := &resource[*TierName, rows.Tier, rows.Tier, TierWritten]{
		place: &place{s, tiersPath, orgsTag, readAccess, writeAccess}, name: "tier", counted: orgWrites,
		find:     func(ctx context.Context, at *TierName) (rows.Tier, error) { return s.Rows.Tier(ctx, at.Name) },
		state:    func(t rows.Tier) (string, int64) { return fmt.Sprintf(`"tier-%d"`, t.Revision), t.Revision },
		location: func(t rows.Tier) string { return tiersPath + "/" + answers.PathSegment(t.Name) },
		show:     asItIs[rows.Tier],
		answer:   func(t rows.Tier, w answers.Written) TierWritten { return TierWritten{t, w} },
	}
	put(r, r.operation("put-tier", http.MethodPut, name, "Create a tier, or replace its description"), s.putTier)
	remove(r, r.operation("delete-tier", http.MethodDelete, name,
		"Delete a tier; orgs and policies that name it are kept", conditional...),
		"delete a tier", func(ctx context.Context, c rows.Change, in *deleteTierInput, revision int64) (int64, error) {
			return s.Rows.DeleteTier(ctx, c, in.Name, revision)
		})
}

// TierName is the name of a tier in a path.
type TierName struct {
	Name string `path:"name" minLength:"1" maxLength:"64" example:"gold"`
}

func (t *TierName) key() *TierName { return t }

// tierBody is a tier as a caller writes it.
type tierBody struct {
	Description string `json:"description,omitempty" maxLength:"1024"`
	Reason      string `json:"reason,omitempty"      maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API."`
}

// Resolve implements [huma.Resolver].
func (b *tierBody) Resolve(huma.Context) []error {
	return notTexts("body", textField{"description", b.Description}, textField{"reason", b.Reason})
}

type putTierInput struct {
	TierName
	IfMatch
	IfNoneMatch
	Waiting
	Body tierBody
}

func (s *Server) putTier(ctx context.Context, in *putTierInput) *write[rows.Tier] {
	desired := rows.Tier{Name: in.Name, Description: in.Body.Description}
	return &write[rows.Tier]{
		action: "put a tier",
		absent: "there is no such tier: omit If-Match to create it", present: "this tier exists already",
		read:   func() (rows.Tier, error) { return s.Rows.Tier(ctx, in.Name) },
		isSame: func(current rows.Tier) bool { return current.Description == desired.Description },
		write: func(_ rows.Tier, revision int64) (d done[rows.Tier], err error) {
			desired.Revision = revision
			return d.with(s.Rows.PutTier(ctx, newChange(ctx, in.Body.Reason), desired))
		},
	}
}

type deleteTierInput struct {
	TierName
	IfMatch
	Waiting
	Reason
}
