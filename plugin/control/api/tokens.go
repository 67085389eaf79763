package api

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// defaultOverlap is how long an old secret works after a rotation that does not say.
const defaultOverlap = time.Hour

func (s *Server) registerTokens() {
	s.registerOperatorTokens()
	at := &place{s, orgPath + "/tokens", "tokens", orgAccess, ownAccess}
	serve(s, at.operation("list-org-tokens", http.MethodGet, "", "List the tokens that an org manages\n"+
		"Live ones are first. Tokens that operators made for the org are not among them."), "list the tokens of an org",
		func(ctx context.Context, in *OrgPath) (answers.OrgTokens, error) {
			list, err := s.Rows.OrgTokens(ctx, in.Org)
			return answers.OrgTokens{Tokens: list}, err
		})
	create := at.operation("create-org-token", http.MethodPost, "", "Create a token of an org, and show its secret once\n"+
		"Its role is tenant:{org}. An org has at most 20 live ones, and makes at most 100 a day.", http.StatusConflict)
	create.DefaultStatus = http.StatusCreated
	once(s, create, "create a token of an org", s.createOrgToken)
	once(s, at.operation("rotate-org-token", http.MethodPost, "/{name}/rotate",
		"Give a token of an org a new secret, and show it once\nIts validity begins again.",
		http.StatusNotFound, http.StatusConflict, stale), "rotate a token of an org", s.rotateOrgToken)
	huma.Register(s.api, at.operation("revoke-org-token", http.MethodDelete, "/{name}",
		"Revoke a token of an org, with its old secrets", http.StatusNotFound, stale), s.revokeOrgToken)
}

// OrgTokenPath names a token of an org.
type OrgTokenPath struct {
	OrgPath
	Name string `path:"name" maxLength:"64" pattern:"^[A-Za-z0-9_.@-]+$" patternDescription:"letters, digits, dots, dashes, underscores or @" example:"ci"`
}

var tokenName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,64}$`)

type createTokenBody struct {
	Name      string         `json:"name"                 doc:"1 to 64 letters, digits, dots, dashes, underscores or @. In the audit it is {org}/{name}." maxLength:"1024" example:"ci"`
	ExpiresIn string         `json:"expires_in,omitempty" doc:"How long it is valid, from 1s to 365d. Default: 365d."                                   maxLength:"32"   example:"90d"`
	Reason    optionalReason `json:"reason,omitempty"     doc:"Why; recorded in the audit. Default: changed by the API."                                maxLength:"1024"`
}

func (b *createTokenBody) Resolve(huma.Context) (faults []error) {
	if !tokenName.MatchString(b.Name) {
		faults = append(faults, fault("body.name", "must be 1 to 64 letters, digits, dots, dashes, underscores or @", b.Name))
	}
	if span, err := ParseDuration(b.ExpiresIn); b.ExpiresIn != "" &&
		(err != nil || span < time.Second || span > rows.MaxOrgTokenLife) {
		faults = append(faults, fault("body.expires_in", "must be a time from 1s to 365d, such as 12h or 90d", b.ExpiresIn))
	}
	return faults
}

// onceOfOrg is a write of an org that a key makes happen once.
type onceOfOrg[B any] struct {
	OrgPath
	Once
	Body B
}

func (s *Server) createOrgToken(
	ctx context.Context, in *onceOfOrg[createTokenBody],
) (made answers.IssuedToken, c rows.Change, err error) {
	c = changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	life := spanOr(in.Body.ExpiresIn, rows.MaxOrgTokenLife)
	made.Secret, made.OrgToken, err = s.Rows.CreateOrgToken(ctx, c, in.Org, in.Body.Name, life)
	return made, c, err
}

type rotateTokenBody struct {
	Overlap string         `json:"overlap,omitempty" doc:"How long the old secret works too, from 0s to 7d. Default: 1h." maxLength:"32" example:"1h"`
	Reason  optionalReason `json:"reason,omitempty"  doc:"Why; recorded in the audit. Default: changed by the API."      maxLength:"1024"`
}

func (b *rotateTokenBody) Resolve(huma.Context) (faults []error) {
	if span, err := ParseDuration(b.Overlap); b.Overlap != "" && (err != nil || span > rows.MaxOverlap) {
		faults = append(faults, fault("body.overlap", "must be a time from 0s to 7d, such as 30m or 1h", b.Overlap))
	}
	return faults
}

type rotateOrgTokenInput struct {
	OrgTokenPath
	Match
	Once
	Body rotateTokenBody
}

func (s *Server) rotateOrgToken(
	ctx context.Context, in *rotateOrgTokenInput,
) (made answers.IssuedToken, c rows.Change, err error) {
	c = changeOnce(ctx, in.Once, in.Body.Reason, in.Body)
	overlap := spanOr(in.Body.Overlap, defaultOverlap)
	made.Secret, made.OrgToken, err = s.Rows.RotateOrgToken(ctx, c, in.Org, in.Name, overlap)
	return made, c, err
}

type revokeOrgTokenInput struct {
	OrgTokenPath
	Match
	Reason string `query:"reason" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API." example:"the laptop was lost"`
}

func (s *Server) revokeOrgToken(ctx context.Context, in *revokeOrgTokenInput) (*struct{}, error) {
	return nil, s.writeError("revoke a token of an org",
		s.Rows.RevokeOrgToken(ctx, newChange(ctx, in.Reason), in.Org, in.Name))
}

type listTokensInput struct {
	Paging[int64]
	rows.TokenFilter
}

// registerOperatorTokens adds the operations on the tokens of operators, and on those that operators make for orgs.
func (s *Server) registerOperatorTokens() {
	at := &place{s, "/v1/ratelimit/tokens", "tokens", readAccess, writeAccess}
	list(s, at.operation("list-tokens", http.MethodGet, "", "List tokens, also expired and revoked ones, ordered by id"),
		"list tokens", asItIs[rows.Token], func(t rows.Token) int64 { return t.ID },
		func(ctx context.Context, in *listTokensInput) ([]rows.Token, error) {
			in.After, in.Max = in.page()
			return s.Rows.Tokens(ctx, in.TokenFilter)
		})
	create := at.operation("create-token", http.MethodPost, "", "Create a token, and show its secret once",
		http.StatusConflict)
	create.DefaultStatus = http.StatusCreated
	serve(s, create, "create a token", s.createToken)
	serveTagged(s, at.operation("get-token", http.MethodGet, "/{name}",
		"Get the token of a name, or the last one that had it", http.StatusNotFound), "read a token",
		func(t rows.Token) int64 { return t.Revision },
		func(ctx context.Context, in *TokenName) (rows.Token, error) { return s.Rows.Token(ctx, in.Name) })
	serve(s, at.operation("revoke-token", http.MethodDelete, "/{name}",
		"Revoke a token, which takes effect within 2 seconds", http.StatusNotFound, stale),
		"revoke a token", s.revokeToken)
}

// newTokenBody is a token as an operator writes it. Its row has the faults of a name.
type newTokenBody struct {
	Name      string    `json:"name"                doc:"1 to 64 letters, digits, dots, dashes, underscores or @. In the audit it is token:{name}, so a name cannot be used again with another role." maxLength:"1024" example:"ci"`
	Role      string    `json:"role"                doc:"admin: full access; viewer: reads everything, and checks requests without spending; tenant:{org}: reads what is about this org."                 maxLength:"256"  example:"viewer"`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"Absent: never."`
	Reason    reason    `json:"reason"              doc:"Why; recorded in the audit."                                                                                                                       maxLength:"1024"`
}

func (b *newTokenBody) Resolve(huma.Context) []error {
	if _, _, err := rows.ParseRole(b.Role); err != nil {
		return []error{fault("body.role", "must be admin, viewer or tenant:{org}", b.Role)}
	}
	return nil
}

type createTokenInput struct {
	DryRun
	Body newTokenBody
}

func (s *Server) createToken(ctx context.Context, in *createTokenInput) (made answers.NewToken, err error) {
	n := rows.NewToken{Name: in.Body.Name, ExpiresAt: in.Body.ExpiresAt}
	if n.Role, n.Org, err = rows.ParseRole(in.Body.Role); err == nil {
		made.Secret, made.Token, err = s.Rows.CreateToken(ctx, newChange(ctx, in.Body.Reason), n)
	}
	return made, err
}

// TokenName is the name of a token in a path.
type TokenName struct {
	Name string `path:"name" maxLength:"193" example:"ci"`
}

type revokeTokenInput struct {
	TokenName
	Match
	DryRun
	Reason
}

func (s *Server) revokeToken(ctx context.Context, in *revokeTokenInput) (rows.Token, error) {
	return s.Rows.RevokeToken(ctx, newChange(ctx, in.Reason.Reason), in.Name)
}
