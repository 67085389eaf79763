package rows

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Token authenticates a caller of the REST API. CreateToken returns its secret; the database stores only a hash.
type Token struct {
	ID         int64     `json:"id"`
	Name       string    `json:"name"` // unique among tokens that are not revoked
	Role       string    `json:"role"`
	Org        string    `json:"org,omitempty"` // of a RoleTenant: the tenant's ID
	CreatedAt  time.Time `json:"created_at"`
	CreatedBy  string    `json:"created_by"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`   // zero: never
	LastUsedAt time.Time `json:"last_used_at,omitzero"` // within a minute; zero: never
	RevokedAt  time.Time `json:"revoked_at,omitzero"`   // zero: it is not; ahead: it was rotated, and lives until then
	RevokedBy  string    `json:"revoked_by,omitempty"`
	State      string    `json:"state"` // by the database's clock, at the time of reading
	Revision   int64     `json:"revision" doc:"Counts the changes of tokens of this name, as the ETag has it."`
}

// Roles of a token. Package api defines their rights.
const (
	RoleAdmin  = "admin"
	RoleViewer = "viewer"
	RoleTenant = "tenant"
)

// States of a token.
const (
	TokenLive    = "live"
	TokenExpired = "expired"
	TokenRevoked = "revoked"
)

// NewToken describes a token to create.
type NewToken struct {
	Name      string
	Role      string
	Org       string    // of a RoleTenant: the tenant's ID; else ""
	ExpiresAt time.Time // zero: never
}

// TokenFilter selects tokens. Every field that is set must match; the zero value selects all.
type TokenFilter struct {
	Name  string `query:"name"  maxLength:"64"               doc:"Only tokens of this name."`
	State string `query:"state" enum:"live,expired,revoked" doc:"Only tokens in this state."`

	After int64 // only tokens with a larger ID: the last one of the page before
	Max   int   // at most so many; 0: all
}

// TokenError reports a secret that authenticates no caller.
type TokenError struct {
	Name  string // the token's; "": no token has the secret
	State string // TokenExpired or TokenRevoked; "": no token has the secret
}

func (e *TokenError) Error() string {
	if e.Name == "" {
		return "no token has this secret"
	}
	return "the token " + e.Name + " is " + e.State
}

const (
	secretPrefix = "rl_" // identifies secrets for people and secret scanners
	secretBytes  = 32
	roleProblem  = "must be admin, viewer or tenant:{org}"
)

// secretText encodes the bytes of a secret in exactly one way.
var secretText = base64.RawURLEncoding.Strict()

// RoleText returns the role in one text: admin, viewer or tenant:{org}.
func (t Token) RoleText() string {
	if t.Role == RoleTenant {
		return t.Role + ":" + t.Org
	}
	return t.Role
}

// ParseRole parses the text of a role. Anything but admin, viewer and tenant:{org} is an InvalidError.
func ParseRole(text string) (role, org string, err error) {
	role, org, named := strings.Cut(text, ":")
	switch {
	case (role == RoleAdmin || role == RoleViewer) && !named, role == RoleTenant && org != "":
		return role, org, nil
	}
	return "", "", &InvalidError{Field: "role", Problem: roleProblem}
}

// selectTokens selects tokens with their revision, by which a write names the state that it was made from.
const selectTokens = `SELECT t.*,
	(SELECT count(*) FROM rate_limiter.audit a WHERE a.kind = 'token' AND a.key = t.name) AS revision
	FROM (` + tokenStates + `) t`

const tokenStates = `SELECT id, name, role, org, created_at, created_by,
		coalesce(expires_at, ` + zeroTime + `) AS expires_at, coalesce(last_used_at, ` + zeroTime + `) AS last_used_at,
		coalesce(revoked_at, ` + zeroTime + `) AS revoked_at, revoked_by, CASE WHEN revoked_at <= clock_timestamp() THEN 'revoked'
			WHEN expires_at <= clock_timestamp() THEN 'expired' ELSE 'live' END AS state
	FROM rate_limiter.tokens`

// CreateToken creates a token and returns its secret, which cannot be read again. It revokes an expired token of the
// same name; a live one is a ConflictError. A name stays bound to its role and org, even after its token is revoked:
// another role is a ConflictError. The audit records the change, which makes no version. c.Idempotency is ignored,
// because a replay could not return the secret.
func (s *DB) CreateToken(ctx context.Context, c Change, n NewToken) (secret string, t Token, err error) {
	c.Idempotency = nil
	secret, hash := newSecret()
	t, _, err = write(ctx, s, "create token "+n.Name, c, func(tx pgx.Tx) (Token, error) {
		if _, err := tx.Exec(ctx, revokeToken+` AND expires_at <= clock_timestamp()`, n.Name); err != nil {
			return Token{}, err
		}
		_, err := tx.Exec(ctx, `INSERT INTO rate_limiter.tokens (name, hash, role, org, expires_at)
			VALUES ($1, $2, $3, $4, $5)`, n.Name, hash[:], n.Role, n.Org, zeronull.Timestamptz(n.ExpiresAt))
		if err != nil {
			return Token{}, err
		}
		return lastToken(ctx, tx, n.Name)
	})
	if err != nil {
		return "", Token{}, err
	}
	return secret, t, nil
}

// Token returns the last token of a name, or a NotFoundError.
func (s *DB) Token(ctx context.Context, name string) (Token, error) {
	t, err := lastToken(ctx, s.pool, name)
	return t, fail("read token "+name, err)
}

func lastToken(ctx context.Context, q querier, name string) (Token, error) {
	return one[Token](ctx, q, "token "+name, selectTokens+` WHERE name = $1 ORDER BY id DESC LIMIT 1`, name)
}

// acceptToken is accept for the tokens of a name. If there is none, the write reports it.
func (c Change) acceptToken(ctx context.Context, q querier, condition string, args ...any) error {
	list, err := collect[Token](ctx, q, selectTokens+" WHERE "+condition+" LIMIT 1", args...)
	if err != nil || len(list) == 0 {
		return err
	}
	return c.accept(list[0].Revision)
}

const ofOrg = `org = $1 AND split_part(name, '/', 2) = $2`

func newSecret() (secret string, hash [sha256.Size]byte) {
	random := make([]byte, secretBytes)
	rand.Read(random) // it never fails
	secret = secretPrefix + secretText.EncodeToString(random)
	return secret, sha256.Sum256([]byte(secret))
}

const revokeToken = `UPDATE rate_limiter.tokens SET revoked_at = clock_timestamp(), revoked_by = rate_limiter.actor()
	WHERE name = $1 AND (revoked_at > clock_timestamp()) IS NOT FALSE`

// RevokeToken revokes the token of a name, with its secrets before rotations, and returns its row, or a NotFoundError
// if it is revoked already. The row stays.
func (s *DB) RevokeToken(ctx context.Context, c Change, name string) (Token, error) {
	t, _, err := write(ctx, s, "revoke token "+name, c, func(tx pgx.Tx) (Token, error) {
		err := c.acceptToken(ctx, tx, "name = $1", name)
		if err == nil {
			err = mustChange(ctx, tx, fmt.Sprintf("a live token %q", name), revokeToken, name)
		}
		if err != nil {
			return Token{}, err
		}
		return lastToken(ctx, tx, name)
	})
	return t, err
}

// Tokens returns the tokens that a filter selects, in the order of their IDs.
func (s *DB) Tokens(ctx context.Context, f TokenFilter) ([]Token, error) {
	var w where
	w.equal("name", f.Name)
	w.equal("state", f.State)
	given(&w, "id > %s", f.After)
	return readAll[Token](ctx, s.pool, "list tokens", selectTokens+w.String()+" ORDER BY id"+limitTo(f.Max), w.args...)
}

// Secrets maps the hash of a secret to its token.
type Secrets map[[sha256.Size]byte]Token

// selectSecrets is read all the time, so it counts no changes in the audit: no sign-in needs the revision.
const selectSecrets = `SELECT t.*, 0 AS revision, h.hash FROM (` + tokenStates + `) t
	JOIN rate_limiter.tokens h USING (id)
	WHERE (h.revoked_at > clock_timestamp() - interval '1 day') IS NOT FALSE
		AND (h.expires_at > clock_timestamp() - interval '1 day') IS NOT FALSE`

// Secrets returns the tokens that are live, or were within the last day, without their revisions.
func (s *DB) Secrets(ctx context.Context) (Secrets, error) {
	type row struct {
		Token
		Hash []byte
	}
	list, err := collect[row](ctx, s.pool, selectSecrets)
	if err != nil {
		return nil, fail("read the tokens", err)
	}
	secrets := make(Secrets, len(list))
	for _, r := range list {
		secrets[[sha256.Size]byte(r.Hash)] = r.Token
	}
	return secrets, nil
}

// Token returns the live token of a secret, or a TokenError.
func (s Secrets) Token(secret string) (Token, error) {
	t, ok := s[sha256.Sum256([]byte(secret))]
	switch {
	case !ok:
		return Token{}, &TokenError{}
	case t.State == TokenLive && !t.ExpiresAt.IsZero() && !time.Now().Before(t.ExpiresAt):
		return Token{}, &TokenError{Name: t.Name, State: TokenExpired}
	case t.State != TokenLive:
		return Token{}, &TokenError{Name: t.Name, State: t.State}
	}
	return t, nil
}

// IsSecret reports whether a text has the form of a secret. Other texts need no query.
func IsSecret(text string) bool {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok || len(encoded) != secretText.EncodedLen(secretBytes) {
		return false
	}
	_, err := secretText.DecodeString(encoded)
	return err == nil
}

// Used records the last use of tokens, by their IDs and the time since then. Ages instead of instants make it
// independent of the caller's clock. It skips tokens with a use recorded less than a minute before, and those that
// another process is writing, so many processes may record the same use.
func (s *DB) Used(ctx context.Context, ago map[int64]time.Duration) error {
	ids, ages := make([]int64, 0, len(ago)), make([]time.Duration, 0, len(ago))
	for id, age := range ago {
		ids, ages = append(ids, id), append(ages, age)
	}
	_, err := s.pool.Exec(ctx, `WITH used AS (
			SELECT u.id, clock_timestamp() - u.age AS at FROM unnest($1::bigint[], $2::interval[]) u (id, age)
		), due AS (
			SELECT t.id, used.at FROM rate_limiter.tokens t JOIN used USING (id)
			WHERE t.last_used_at IS NULL OR used.at >= t.last_used_at + interval '1 minute'
			FOR NO KEY UPDATE OF t SKIP LOCKED
		) UPDATE rate_limiter.tokens t SET last_used_at = due.at FROM due WHERE t.id = due.id`, ids, ages)
	return fail(fmt.Sprintf("record the use of %d tokens", len(ago)), err)
}

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
	Revision       int64     `json:"revision"                  doc:"Counts the changes of tokens of this name, as the ETag has it."`
}

// selectOrgTokens selects the last row of each name of an org: the rows before are those of earlier secrets.
const selectOrgTokens = `SELECT split_part(t.name, '/', 2) AS name, t.role || ':' || t.org AS role, t.state,
		t.created_at, t.expires_at, t.last_used_at, t.revision, coalesce((SELECT max(o.revoked_at) FROM rate_limiter.tokens o
			WHERE o.name = t.name AND o.id < t.id AND o.revoked_at > clock_timestamp()
				AND (o.expires_at > clock_timestamp()) IS NOT FALSE), ` + zeroTime + `) AS old_secret_until
	FROM (SELECT DISTINCT ON (name) * FROM (` + selectTokens + `) rows
		WHERE org = $1 AND position('/' IN name) > 0 ORDER BY name, id DESC) t`

// OrgTokens returns the tokens that an org manages, each name once: first the live ones, and then the last ones that
// have ended.
func (s *DB) OrgTokens(ctx context.Context, org string) ([]OrgToken, error) {
	return readAll[OrgToken](ctx, s.pool, "list the tokens of an org",
		selectOrgTokens+` ORDER BY t.state <> 'live', t.id DESC`+limitTo(maxOrgTokenList), org)
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
	return s.issueOrgToken(ctx, "create a token of an org", c, "create_org_token", org, name, life)
}

// RotateOrgToken gives the live token of an org another secret and returns that. The old one works for the overlap. The
// validity begins again. A missing token is a NotFoundError, and too many rotations are a ConflictError. A replay by
// c.Idempotency returns no secret.
func (s *DB) RotateOrgToken(
	ctx context.Context, c Change, org, name string, overlap time.Duration,
) (secret string, t OrgToken, err error) {
	return s.issueOrgToken(ctx, "rotate a token of an org", c, "rotate_org_token", org, name, overlap)
}

// issueOrgToken calls a function of the database that issues a secret.
func (s *DB) issueOrgToken(
	ctx context.Context, doing string, c Change, function, org, name string, span time.Duration,
) (string, OrgToken, error) {
	secret, hash := newSecret()
	t, _, err := write(ctx, s, doing, c, func(tx pgx.Tx) (OrgToken, error) {
		what := fmt.Sprintf("token %q", name)
		var problem string
		err := c.acceptToken(ctx, tx, ofOrg, org, name)
		if err != nil {
			return OrgToken{}, err
		}
		err = tx.QueryRow(ctx, `SELECT coalesce(problem, '') FROM rate_limiter.`+function+`($1, $2, $3, $4)`,
			org, name, hash[:], span).Scan(&problem)
		switch {
		case err != nil:
			return OrgToken{}, err
		case problem == "missing":
			return OrgToken{}, &NotFoundError{What: fmt.Sprintf("a live token %q", name)}
		case problem != "":
			return OrgToken{}, &ConflictError{What: what, Problem: orgTokenProblems[problem]}
		}
		return one[OrgToken](ctx, tx, what, selectOrgTokens+` WHERE split_part(t.name, '/', 2) = $2`, org, name)
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
		if err := c.acceptToken(ctx, tx, ofOrg, org, name); err != nil {
			return none, err
		}
		err = tx.QueryRow(ctx, `SELECT rate_limiter.revoke_org_token($1, $2)`, org, name).Scan(&revoked)
		if err == nil && revoked == 0 {
			err = &NotFoundError{What: fmt.Sprintf("a live token %q", name)}
		}
		return none, err
	})
	return err
}
