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

// registerTokens adds the operations on tokens: those of operators, and those that an org manages.
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
	huma.Register(s.api, create, s.createOrgToken)
	huma.Register(s.api, at.operation("rotate-org-token", http.MethodPost, "/{name}/rotate",
		"Give a token of an org a new secret, and show it once\nIts validity begins again.",
		http.StatusNotFound, http.StatusConflict), s.rotateOrgToken)
	huma.Register(s.api, at.operation("revoke-org-token", http.MethodDelete, "/{name}",
		"Revoke a token of an org, with its old secrets", http.StatusNotFound), s.revokeOrgToken)
}

// OrgTokenPath names a token of an org.
type OrgTokenPath struct {
	OrgPath
	Name string `path:"name" maxLength:"64" pattern:"^[A-Za-z0-9_.@-]+$" patternDescription:"letters, digits, dots, dashes, underscores or @" example:"ci"`
}

// issued counts the write of a token, and returns its answer.
func (s *Server) issued(c rows.Change, t rows.OrgToken, secret string) *writeOutput[answers.IssuedToken] {
	s.metrics.writes.WithLabelValues(tokenWrites).Inc()
	return &writeOutput[answers.IssuedToken]{replayedHeader(c), answers.IssuedToken{OrgToken: t, Secret: secret}}
}

// tokenName matches the names of tokens.
var tokenName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,64}$`)

// createTokenBody is a token as a caller writes it.
type createTokenBody struct {
	Name      string `json:"name"                 doc:"1 to 64 letters, digits, dots, dashes, underscores or @. In the audit it is {org}/{name}." maxLength:"1024" example:"ci"`
	ExpiresIn string `json:"expires_in,omitempty" doc:"How long it is valid, from 1s to 365d. Default: 365d."                                   maxLength:"32"   example:"90d"`
	Reason    string `json:"reason,omitempty"     doc:"Why; recorded in the audit. Default: changed by the API."                                maxLength:"1024"`
}

// Resolve implements [huma.Resolver].
func (b *createTokenBody) Resolve(huma.Context) []error {
	faults := notTexts("body", textField{"reason", b.Reason})
	if !tokenName.MatchString(b.Name) {
		faults = append(faults, fault("body.name", "must be 1 to 64 letters, digits, dots, dashes, underscores or @", b.Name))
	}
	if span, err := parseDuration(b.ExpiresIn); b.ExpiresIn != "" &&
		(err != nil || span < time.Second || span > rows.MaxOrgTokenLife) {
		faults = append(faults, fault("body.expires_in", "must be a time from 1s to 365d, such as 12h or 90d", b.ExpiresIn))
	}
	return faults
}

type createOrgTokenInput struct {
	OrgPath
	Once
	Body createTokenBody
}

func (s *Server) createOrgToken(
	ctx context.Context, in *createOrgTokenInput,
) (*writeOutput[answers.IssuedToken], error) {
	c := in.newChange(ctx, in.Body.Reason, "create-org-token", in.Org, in.Body)
	life := spanOr(in.Body.ExpiresIn, rows.MaxOrgTokenLife)
	secret, t, err := s.Rows.CreateOrgToken(ctx, c, in.Org, in.Body.Name, life)
	if err != nil {
		return nil, s.writeError("create a token of an org", err)
	}
	return s.issued(c, t, secret), nil
}

// rotateTokenBody says how a token is rotated.
type rotateTokenBody struct {
	Overlap string `json:"overlap,omitempty" doc:"How long the old secret works too, from 0s to 7d. Default: 1h." maxLength:"32" example:"1h"`
	Reason  string `json:"reason,omitempty"  doc:"Why; recorded in the audit. Default: changed by the API."      maxLength:"1024"`
}

// Resolve implements [huma.Resolver].
func (b *rotateTokenBody) Resolve(huma.Context) []error {
	faults := notTexts("body", textField{"reason", b.Reason})
	if span, err := parseDuration(b.Overlap); b.Overlap != "" && (err != nil || span > rows.MaxOverlap) {
		faults = append(faults, fault("body.overlap", "must be a time from 0s to 7d, such as 30m or 1h", b.Overlap))
	}
	return faults
}

type rotateOrgTokenInput struct {
	OrgTokenPath
	Once
	Body rotateTokenBody
}

func (s *Server) rotateOrgToken(
	ctx context.Context, in *rotateOrgTokenInput,
) (*writeOutput[answers.IssuedToken], error) {
	c := in.newChange(ctx, in.Body.Reason, "rotate-org-token", in.Org, in.Name, in.Body)
	secret, t, err := s.Rows.RotateOrgToken(ctx, c, in.Org, in.Name, spanOr(in.Body.Overlap, defaultOverlap))
	if err != nil {
		return nil, s.writeError("rotate a token of an org", err)
	}
	return s.issued(c, t, secret), nil
}

// OptionalReason has the reason of a deletion that needs none.
type OptionalReason struct {
	Reason string `query:"reason" maxLength:"1024" doc:"Why; recorded in the audit. Default: changed by the API." example:"the laptop was lost"`
}

type revokeOrgTokenInput struct {
	OrgTokenPath
	OptionalReason
}

func (s *Server) revokeOrgToken(ctx context.Context, in *revokeOrgTokenInput) (*struct{}, error) {
	err := s.Rows.RevokeOrgToken(ctx, newChange(ctx, in.Reason), in.Org, in.Name)
	if err == nil {
		s.metrics.writes.WithLabelValues(tokenWrites).Inc()
	}
	return nil, s.writeError("revoke a token of an org", err)
}
