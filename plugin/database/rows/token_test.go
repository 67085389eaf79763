package rows_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
)

// create creates a token and returns its secret.
func create(t *testing.T, s *rows.DB, n rows.NewToken) (string, rows.Token) {
	t.Helper()
	secret, token, err := s.CreateToken(t.Context(), ann, n)
	require.NoError(t, err, "create %+v", n)
	return secret, token
}

// expire makes a token expire. Triggers forbid that, so the transaction disables them.
func expire(t *testing.T, pool *pgxpool.Pool, id int64) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `UPDATE rate_limiter.tokens SET created_at = clock_timestamp() - interval '2 days',
				expires_at = clock_timestamp() - interval '1 second' WHERE id = $1`, id)
		}
		return err
	})
	require.NoError(t, err, "let token %d expire", id)
}

// tokenOf returns the live token of a secret, or a TokenError.
func tokenOf(t *testing.T, s *rows.DB, secret string) (rows.Token, error) {
	t.Helper()
	all, err := s.Secrets(t.Context())
	require.NoError(t, err)
	return all.Token(secret)
}

// wantTokenError checks that an error is a TokenError of a token in a state.
func wantTokenError(t *testing.T, what string, err error, name, state string) {
	t.Helper()
	denied := new(rows.TokenError)
	if !errors.As(err, &denied) || denied.Name != name || denied.State != state {
		t.Errorf("%s: %v, want a TokenError of %q in state %q", what, err, name, state)
	}
}

// wantLive checks the number of live tokens.
func wantLive(t *testing.T, s *rows.DB, want int) {
	t.Helper()
	live, err := s.Tokens(t.Context(), rows.TokenFilter{State: rows.TokenLive})
	require.NoError(t, err)
	assert.Len(t, live, want)
}

func TestSecretAuthenticatesUntilItsTokenIsRevoked(t *testing.T) {
	s, _ := open(t)
	wantLive(t, s, 0)
	secret, made := create(t, s, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	other, _ := create(t, s, rows.NewToken{
		Name: "acme", Role: rows.RoleTenant, Org: "acme", ExpiresAt: time.Now().Add(time.Hour),
	})
	wantLive(t, s, 2)
	if !strings.HasPrefix(secret, "rl_") || len(secret) != 46 || secret == other {
		t.Errorf("the secrets are %q and %q", secret, other)
	}
	made.Revision = 0 // Secrets reads none
	found, err := tokenOf(t, s, secret)
	if err != nil || found != made || found.State != rows.TokenLive || found.CreatedBy != "ann" ||
		found.RoleText() != "admin" {
		t.Errorf("the secret authenticates %+v (%v), want %+v", found, err, made)
	}
	if found, err := tokenOf(t, s, other); err != nil || found.Org != "acme" ||
		found.RoleText() != "tenant:acme" || found.ExpiresAt.IsZero() {
		t.Errorf("the tenant's secret authenticates %+v (%v)", found, err)
	}
	revoked, err := s.RevokeToken(t.Context(), rows.Change{Actor: "bob", Reason: "it leaked"}, "ci")
	if err != nil || revoked.State != rows.TokenRevoked || revoked.RevokedBy != "bob" || revoked.RevokedAt.IsZero() {
		t.Errorf("the revoked token is %+v (%v)", revoked, err)
	}
	_, err = tokenOf(t, s, secret)
	wantTokenError(t, "the revoked secret", err, "ci", rows.TokenRevoked)
	_, err = s.RevokeToken(t.Context(), ann, "ci")
	wantMissing(t, "revoking it again", err)
	wantLive(t, s, 1)
}

func TestExpiredTokenAuthenticatesNoCallerAndFreesItsName(t *testing.T) {
	s, pool := open(t)
	secret, old := create(t, s, rows.NewToken{
		Name: "ci", Role: rows.RoleAdmin, ExpiresAt: time.Now().Add(time.Hour),
	})
	_, _, err := s.CreateToken(t.Context(), ann, rows.NewToken{Name: "ci", Role: rows.RoleViewer})
	wantConflict(t, "a second token of the name", err)
	expire(t, pool, old.ID)
	_, err = tokenOf(t, s, secret)
	wantTokenError(t, "the expired secret", err, "ci", rows.TokenExpired)
	wantLive(t, s, 0)
	if list, err := s.Tokens(t.Context(), rows.TokenFilter{State: rows.TokenExpired}); err != nil ||
		len(list) != 1 || list[0].ID != old.ID {
		t.Errorf("the expired tokens are %v (%v), want one", list, err)
	}
	_, _, err = s.CreateToken(t.Context(), ann, rows.NewToken{Name: "ci", Role: rows.RoleViewer})
	wantConflict(t, "the name for another role", err)
	create(t, s, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	list, err := s.Tokens(t.Context(), rows.TokenFilter{Name: "ci"})
	if err != nil || len(list) != 2 || list[0].State != rows.TokenRevoked || list[1].State != rows.TokenLive {
		t.Errorf("tokens of the name: %+v (%v), want the old one revoked and the new one live", list, err)
	}
}

func TestTextsThatAreNoSecretsAuthenticateNoCaller(t *testing.T) {
	s, _ := open(t)
	secret, _ := create(t, s, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	for _, wrong := range []string{
		"", "rl_", secret[3:], "RL_" + secret[3:], secret + "A", secret[:45], secret + "=", secret + "\n",
		strings.Replace(secret, "rl_", "rl-", 1),
		"rl_" + strings.Repeat("A", 43), "rl_" + strings.Repeat("\x00", 43), "' OR '1'='1", secret[:45] + "\xff",
	} {
		_, err := tokenOf(t, s, wrong)
		wantTokenError(t, fmt.Sprintf("%q", wrong), err, "", "")
	}
}

func TestNeitherTheDatabaseNorTheAuditContainsASecret(t *testing.T) {
	s, pool := open(t)
	secret, _ := create(t, s, rows.NewToken{Name: "ci", Role: rows.RoleAdmin})
	_, err := s.RevokeToken(t.Context(), ann, "ci")
	require.NoError(t, err)
	for _, table := range []string{"tokens", "audit"} {
		var list []byte
		if err := pool.QueryRow(t.Context(), `SELECT jsonb_agg(to_jsonb(x))::text
			FROM rate_limiter.`+table+` x`).Scan(&list); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(list, []byte(secret[3:])) || table == "audit" && bytes.Contains(list, []byte("hash")) {
			t.Errorf("%s: %s", table, list)
		}
	}
	entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "token", Key: "ci"})
	if err != nil || len(entries) != 2 || entries[1].Operation != "insert" || entries[0].Operation != "update" ||
		entries[0].Actor != "ann" || entries[0].Version != 0 {
		t.Errorf("the audit has %+v (%v), want the creation and the revocation, without a version", entries, err)
	}
}

func TestErrorOfAnInvalidTokenNamesTheField(t *testing.T) {
	s, _ := open(t)
	for field, n := range map[string]rows.NewToken{
		"name":       {Name: "two words", Role: rows.RoleAdmin},
		"role":       {Name: "ci", Role: "root"},
		"org":        {Name: "ci", Role: rows.RoleTenant},
		"expires_at": {Name: "ci", Role: rows.RoleAdmin, ExpiresAt: time.Unix(1, 0)},
	} {
		secret, _, err := s.CreateToken(t.Context(), ann, n)
		wantInvalid(t, field, err, field)
		assert.Equal(t, "", secret, "%s: a secret is returned", field)
	}
	_, _, err := s.CreateToken(t.Context(), rows.Change{Actor: "ann"}, rows.NewToken{
		Name: "ci", Role: rows.RoleAdmin,
	})
	wantInvalid(t, "no reason", err, "reason")
}

func TestRolesAreReadAsTheyAreWritten(t *testing.T) {
	for _, text := range []string{"admin", "viewer", "tenant:acme", "tenant:a:b", "tenant:ä b"} {
		role, org, err := rows.ParseRole(text)
		if got := (rows.Token{Role: role, Org: org}).RoleText(); err != nil || got != text {
			t.Errorf("%q is read as %q (%v)", text, got, err)
		}
	}
	for _, text := range []string{"", "root", "Admin", "admin:", "viewer:acme", "tenant", "tenant:", " admin"} {
		_, _, err := rows.ParseRole(text)
		wantInvalid(t, text, err, "role")
	}
}

func TestUseIsRecordedAtMostOnceAMinuteAndNeverBackwards(t *testing.T) {
	s, _ := open(t)
	_, used := create(t, s, rows.NewToken{Name: "used", Role: rows.RoleAdmin})
	create(t, s, rows.NewToken{Name: "unused", Role: rows.RoleAdmin})
	last := func() time.Time {
		t.Helper()
		list, err := s.Tokens(t.Context(), rows.TokenFilter{})
		if err != nil || len(list) != 2 || !list[1].LastUsedAt.IsZero() {
			t.Fatalf("the tokens are %+v (%v); one was never used", list, err)
		}
		return list[0].LastUsedAt
	}
	record := func(ago time.Duration) {
		t.Helper()
		require.NoError(t, s.Used(t.Context(), map[int64]time.Duration{used.ID: ago, 4711: ago}))
	}
	record(10 * time.Minute)
	first := last()
	if since := time.Since(first); since < 9*time.Minute || since > 11*time.Minute {
		t.Errorf("it was used %v ago, want 10m", since)
	}
	for _, ago := range []time.Duration{time.Hour, 9*time.Minute + 30*time.Second} {
		if record(ago); !last().Equal(first) {
			t.Errorf("use %v ago is recorded", ago)
		}
	}
	if record(0); !last().After(first) {
		t.Error("use after more than a minute is not recorded")
	}
	if entries, err := s.Audit(t.Context(), rows.AuditFilter{Kind: "token"}); err != nil || len(entries) != 2 {
		t.Errorf("the audit has %v (%v), want no entry of the use", entries, err)
	}
}
