package rows

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of the tokens that an org manages. The functions of package migrations enforce them.
const (
	// MaxOrgTokens bounds the live tokens of an org.
	MaxOrgTokens = 20
	// MaxOrgTokenLife bounds the time for which such a token is valid.
	MaxOrgTokenLife = 365 * 24 * time.Hour
	// MaxOverlap bounds the time for which an old secret works after a rotation.
	MaxOverlap = 7 * 24 * time.Hour
	// maxOrgTokenList bounds a list; rows of tokens are never deleted.
	maxOrgTokenList = 200
)

// OrgToken is a token that an org manages itself, with the role of a tenant. Its name in the audit and in Tokens begins
// with the org.
type OrgToken struct {
	Name           string    `json:"name"                      doc:"Unique among the live tokens of the org."`
	Role           string    `json:"role"                      doc:"tenant:{org}"`
	State          string    `json:"state"                     enum:"live,expired,revoked"`
	CreatedAt      time.Time `json:"created_at"`
	ExpiresAt      time.Time `json:"expires_at,omitzero"`
	LastUsedAt     time.Time `json:"last_used_at,omitzero"     doc:"Within a minute. Absent: never."`
	OldSecretUntil time.Time `json:"old_secret_until,omitzero" doc:"Until then the secret before the last rotation works too."`
}

// selectOrgTokens selects the last row of each name of an org: the rows before are those of earlier secrets.
const selectOrgTokens = `SELECT split_part(t.name, '/', 2) AS name, t.role || ':' || t.org AS role, t.state,
		t.created_at, t.expires_at, t.last_used_at, coalesce((SELECT max(o.revoked_at) FROM rate_limiter.tokens o
			WHERE o.name = t.name AND o.id < t.id AND o.revoked_at > clock_timestamp()
				AND (o.expires_at > clock_timestamp()) IS NOT FALSE), ` + zeroTime + `) AS old_secret_until
	FROM (SELECT DISTINCT ON (name) * FROM (` + selectTokens + `) rows
		WHERE org = $1 AND position('/' IN name) > 0 ORDER BY name, id DESC) t`

// OrgTokens returns the tokens that an org manages, each name once: first the live ones, and then the last ones that
// have ended.
func (s *DB) OrgTokens(ctx context.Context, org string) ([]OrgToken, error) {
	list, err := collect[OrgToken](ctx, s.pool,
		selectOrgTokens+` ORDER BY t.state <> 'live', t.id DESC`+limitTo(maxOrgTokenList), org)
	return list, fail("list the tokens of an org", err)
}

// oneOrgToken returns the last token of a name.
func oneOrgToken(ctx context.Context, q querier, org, name string) (OrgToken, error) {
	return one[OrgToken](ctx, q, fmt.Sprintf("token %q", name), selectOrgTokens+` WHERE split_part(t.name, '/', 2) = $2`,
		org, name)
}

// orgTokenProblems lists why a function makes no token.
var orgTokenProblems = map[string]string{
	"live": "there is a live one of this name: revoke it first, or take another name",
	"full": fmt.Sprintf("the org has %d live ones, which is the most: revoke one", MaxOrgTokens),
	"many": "the org has made too many in the last 24 hours: wait, or ask the operator for one",
	"busy": "its four secrets before the last rotations still work: wait until one ends, or rotate with the overlap 0s",
}

// CreateOrgToken creates a token of an org that is valid for a time, and returns its secret, which cannot be read
// again. A live one of the name, and too many of the org, are a ConflictError. A replay by c.Idempotency returns no
// secret.
func (s *DB) CreateOrgToken(
	ctx context.Context, c Change, org, name string, life time.Duration,
) (secret string, t OrgToken, err error) {
	const call = `SELECT coalesce(id, 0) AS id, coalesce(problem, '') AS problem
		FROM rate_limiter.create_org_token($1, $2, $3, $4)`
	return s.issueOrgToken(ctx, "create a token of an org", c, call, org, name, life)
}

// RotateOrgToken gives the live token of an org another secret and returns that. The old one works for the overlap. The
// validity begins again. A missing token is a NotFoundError, and too many rotations are a ConflictError. A replay by
// c.Idempotency returns no secret.
func (s *DB) RotateOrgToken(
	ctx context.Context, c Change, org, name string, overlap time.Duration,
) (secret string, t OrgToken, err error) {
	const call = `SELECT coalesce(id, 0) AS id, coalesce(problem, '') AS problem
		FROM rate_limiter.rotate_org_token($1, $2, $3, $4)`
	return s.issueOrgToken(ctx, "rotate a token of an org", c, call, org, name, overlap)
}

// issueOrgToken calls a function that issues a secret.
func (s *DB) issueOrgToken(
	ctx context.Context, doing string, c Change, call, org, name string, span time.Duration,
) (string, OrgToken, error) {
	secret, hash := newSecret()
	t, _, err := write(ctx, s, doing, c, func(tx pgx.Tx) (OrgToken, error) {
		what := fmt.Sprintf("token %q", name)
		made, err := one[struct {
			ID      int64
			Problem string
		}](ctx, tx, what, call, org, name, hash[:], span)
		switch {
		case err != nil:
			return OrgToken{}, err
		case made.Problem == "missing":
			return OrgToken{}, &NotFoundError{What: fmt.Sprintf("a live token %q", name)}
		case made.Problem != "":
			return OrgToken{}, &ConflictError{What: what, Problem: orgTokenProblems[made.Problem]}
		}
		return oneOrgToken(ctx, tx, org, name)
	})
	if err != nil || c.Idempotency != nil && c.Idempotency.Replayed {
		secret = ""
	}
	return secret, t, err
}

// RevokeOrgToken revokes the live token of an org, with its secrets before rotations, or returns a NotFoundError. The
// rows stay.
func (s *DB) RevokeOrgToken(ctx context.Context, c Change, org, name string) error {
	_, _, err := write(ctx, s, "revoke a token of an org", c, func(tx pgx.Tx) (none noResult, err error) {
		var revoked int
		err = tx.QueryRow(ctx, `SELECT rate_limiter.revoke_org_token($1, $2)`, org, name).Scan(&revoked)
		if err == nil && revoked == 0 {
			err = &NotFoundError{What: fmt.Sprintf("a live token %q", name)}
		}
		return none, err
	})
	return err
}
