package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

type listTokensInput struct {
	Paging
	rows.TokenFilter
}

// registerOperatorTokens adds the operations on the tokens of operators, and on those that operators make for orgs.
func (s *Server) registerOperatorTokens() {
	at := &place{s, "/v1/ratelimit/tokens", "tokens", readAccess, writeAccess}
	list(s, at.operation("list-tokens", http.MethodGet, "", "List tokens, also expired and revoked ones, ordered by id"),
		"list tokens", asItIs[rows.Token], func(t rows.Token) string { return cursor(t.ID) },
		func(ctx context.Context, in *listTokensInput) ([]rows.Token, error) {
			in.After, in.Max = in.page()
			return s.Rows.Tokens(ctx, in.TokenFilter)
		})
	create := at.operation("create-token", http.MethodPost, "", "Create a token, and show its secret once",
		http.StatusConflict)
	create.DefaultStatus = http.StatusCreated
	serve(s, create, "create a token", s.createToken)
	serve(s, at.operation("revoke-token", http.MethodDelete, "/{name}",
		"Revoke a token, which takes effect within 2 seconds", http.StatusNotFound), "revoke a token", s.revokeToken)
}

// newTokenBody is a token as an operator writes it. Its row has the faults of a name.
type newTokenBody struct {
	Name      string    `json:"name"                doc:"1 to 64 letters, digits, dots, dashes, underscores or @. In the audit it is token:{name}, so a name cannot be used again with another role." maxLength:"1024" example:"ci"`
	Role      string    `json:"role"                doc:"admin: full access; viewer: reads everything, and checks requests without spending; tenant:{org}: reads what is about this org."                 maxLength:"256"  example:"viewer"`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"Absent: never."`
	Reason    string    `json:"reason"              doc:"Why; recorded in the audit."                                                                                                                       maxLength:"1024"`
}

// Resolve implements [huma.Resolver].
func (b *newTokenBody) Resolve(huma.Context) []error {
	faults := append(notTexts("body", textField{"name", b.Name}), reasonFaults("body.reason", b.Reason)...)
	if _, _, err := rows.ParseRole(b.Role); err != nil || !isText(b.Role) {
		faults = append(faults, fault("body.role", "must be admin, viewer or tenant:{org}", b.Role))
	}
	return faults
}

type createTokenInput struct{ Body newTokenBody }

func (s *Server) createToken(ctx context.Context, in *createTokenInput) (made answers.NewToken, err error) {
	n := rows.NewToken{Name: in.Body.Name, ExpiresAt: in.Body.ExpiresAt}
	if n.Role, n.Org, err = rows.ParseRole(in.Body.Role); err == nil {
		made.Secret, made.Token, err = s.Rows.CreateToken(ctx, newChange(ctx, in.Body.Reason), n)
	}
	if err == nil {
		s.metrics.writes.WithLabelValues(tokenWrites).Inc()
	}
	return made, err
}

type revokeTokenInput struct {
	Name string `path:"name" maxLength:"64" example:"ci"`
	Reason
}

func (s *Server) revokeToken(ctx context.Context, in *revokeTokenInput) (rows.Token, error) {
	t, err := s.Rows.RevokeToken(ctx, newChange(ctx, in.Reason.Reason), in.Name)
	if err == nil {
		s.metrics.writes.WithLabelValues(tokenWrites).Inc()
	}
	return t, err
}
