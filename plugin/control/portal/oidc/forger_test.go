package oidc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// forger is a provider that says what a test wants. Its functions are set before it is used.
type forger struct {
	*httptest.Server
	key      *ecdsa.PrivateKey
	config   map[string]any // in place of parts of the configuration
	token    string         // the ID token of the next answer
	userinfo map[string]any
	discover http.HandlerFunc
}

func newForger(t *testing.T) *forger {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	f, mux := &forger{key: key}, http.NewServeMux()
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	f.discover = func(w http.ResponseWriter, _ *http.Request) {
		config := map[string]any{
			"issuer": f.URL, "authorization_endpoint": f.URL + "/auth", "token_endpoint": f.URL + "/token",
			"jwks_uri": f.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
		}
		maps.Copy(config, f.config)
		answer(w, config)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) { f.discover(w, r) })
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		point, err := f.key.PublicKey.Bytes()
		if err != nil {
			panic(err)
		}
		text := base64.RawURLEncoding.EncodeToString
		answer(w, map[string]any{"keys": []any{
			map[string]any{"kty": "EC", "crv": "P-256", "kid": "1", "x": text(point[1:33]), "y": text(point[33:])},
		}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": f.token})
	})
	mux.HandleFunc("/userinfo", func(w http.ResponseWriter, _ *http.Request) { answer(w, f.userinfo) })
	return f
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

// begin starts a sign-in and returns the URL of its callback, and the nonce that its ID token must have.
func (f *forger) begin(t *testing.T, s *site, b *http.Client) (back, nonce string) {
	t.Helper()
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, err := b.Get(s.URL + StartPath)
	require.NoError(t, err)
	r.Body.Close()
	to, err := r.Location()
	if err != nil {
		t.Fatalf("status %d: %v", r.StatusCode, err)
	}
	query := to.Query()
	if !strings.HasPrefix(to.String(), f.URL+"/auth?") || query.Get("code_challenge_method") != "S256" ||
		query.Get("scope") != DefaultScopes || query.Get("response_type") != "code" {
		t.Fatalf("the provider gets %s", to)
	}
	return s.URL + CallbackPath + "?code=c&state=" + query.Get("state"), query.Get("nonce")
}

// sign returns a token with claims, signed by a key and with a key's id in its head.
func (f *forger) sign(t *testing.T, claims jwt.MapClaims, kid string) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = kid
	text, err := token.SignedString(f.key)
	require.NoError(t, err)
	return text
}

// claims returns those of an admin, with changes. A nil one removes a claim.
func (f *forger) claims(nonce string, now time.Time, changes map[string]any) jwt.MapClaims {
	claims := jwt.MapClaims{
		"iss": f.URL, "aud": clientID, "sub": "1", "email": "ann@example.org", "roles": "ratelimit:admin", "nonce": nonce,
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}
