package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

const authed = `
services:
- name: echo
  host: echo.internal
  routes:
  - {name: keyed, paths: [/keyed], plugins: [{name: key-auth, config: {key_names: [apikey, X-Key]}}]}
  - {name: open, paths: [/open], plugins: [{name: key-auth, config: {anonymous: guest}}]}
  - {name: broken, paths: [/broken], plugins: [{name: key-auth, config: {anonymous: ghost}}]}
  - {name: token, paths: [/token], plugins: [{name: jwt, config: {claims_to_verify: [exp]}}]}
  - {name: members, paths: [/members], plugins: [{name: key-auth}, {name: acl, config: {allow: [gold, staff]}}]}
  - {name: others, paths: [/others], plugins: [{name: key-auth}, {name: acl, config: {deny: [gold]}}]}
  - {name: shut, paths: [/shut], plugins: [{name: acl, config: {allow: [gold]}}]}
  - name: either
    paths: [/either]
    plugins: [{name: jwt, config: {anonymous: guest}}, {name: key-auth, config: {anonymous: guest}}]
consumers:
- {username: guest}
- {username: ann, custom_id: c1, keyauth_credentials: [{key: k1}], jwt_secrets: [{key: iss1, secret: s1}]}
- {username: bob, acls: [{group: gold}, {group: eu}], keyauth_credentials: [{key: k2}]}
`

// token returns a signed token.
func token(t *testing.T, secret string, claims jwt.MapClaims) string {
	t.Helper()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	require.NoError(t, err)
	return signed
}

func TestDenialsHaveTheMessagesOfKong(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, authed)})
	const invalid, far = `Bearer error="invalid_token"`, float64(4102444800)
	bearing := func(secret string, claims jwt.MapClaims) string {
		return "Authorization: Bearer " + token(t, secret, claims)
	}
	unlisted := jwt.MapClaims{"iss": "?"}
	for _, c := range []struct {
		line, header, message, challenge string
		status                           int
	}{
		{"GET /keyed HTTP/1.1", "X-A: b", "No API key found in request", "Key", 401},
		{"GET /keyed HTTP/1.1", "apikey: wrong", "Unauthorized", "Key", 401},
		{"GET /keyed?apikey=a&apikey=b HTTP/1.1", "X-A: b", "Duplicate API key found", "Key", 401},
		{"GET /keyed?apikey= HTTP/1.1", "X-A: b", "No API key found in request", "Key", 401},
		{"GET /broken HTTP/1.1", "X-A: b", "anonymous consumer ghost is configured but doesn't exist", "", 500},
		{"GET /token HTTP/1.1", "X-A: b", "Unauthorized", "Bearer", 401},
		{"GET /token?jwt=x HTTP/1.1", "Authorization: Bearer y", "Multiple tokens provided", invalid, 401},
		{"GET /token?jwt=x.y.z HTTP/1.1", "X-A: b", "Bad token; invalid JSON", invalid, 401},
		{"GET /token HTTP/1.1", bearing("s1", jwt.MapClaims{}), "No mandatory 'iss' in claims", invalid, 401},
		{"GET /token HTTP/1.1", bearing("s1", unlisted), "No credentials found for given 'iss'", invalid, 401},
		{"GET /token HTTP/1.1", bearing("s2", jwt.MapClaims{"iss": "iss1"}), "Invalid signature", invalid, 401},
		{"GET /members HTTP/1.1", "apikey: k1", "You cannot consume this service", "", 403},
		{"GET /others HTTP/1.1", "apikey: k2", "You cannot consume this service", "", 403},
		{"GET /shut HTTP/1.1", "X-A: b", "Unauthorized", "", 401},
		{"GET /nowhere HTTP/1.1", "X-A: b", "no Route matched with those values", "", 404},
	} {
		got := send(t, g, c.line, "Host: x", c.header)
		var body struct{ Message string }
		if err := json.Unmarshal([]byte(got.body), &body); err != nil {
			t.Errorf("%s: %v in %q", c.line, err, got.body)
		}
		if got.status != c.status || body.Message != c.message || got.header.Get("WWW-Authenticate") != c.challenge {
			t.Errorf("%s %s: %d %q %q", c.line, c.header, got.status, body.Message, got.header.Get("WWW-Authenticate"))
		}
	}
	expired := send(t, g, "GET /token HTTP/1.1", "Host: x", bearing("s1", jwt.MapClaims{"iss": "iss1", "exp": 1}))
	if expired.status != 401 || expired.body != `{"message":"token expired"}` {
		t.Errorf("expired: %d %s", expired.status, expired.body)
	}
	valid := token(t, "s1", jwt.MapClaims{"iss": "iss1", "exp": far})
	good := send(t, g, "GET /token HTTP/1.1", "Host: x", "Authorization: bearer "+valid)
	if good.status != 200 || good.echo(t).Headers["X-Credential-Identifier"] != "iss1" {
		t.Errorf("good token: %d %s", good.status, good.body)
	}
}

func TestTheUpstreamGetsTheConsumerAndNoForgedHeaders(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, authed)})
	forged := []string{
		"X-Consumer-Username: forged", "X-Anonymous-Consumer: true", "X-Credential-Identifier: forged",
		"X-Consumer-Custom-Id: forged",
	}
	ann := send(t, g, append([]string{"GET /keyed/x?apikey=k1&b=2 HTTP/1.1", "Host: x"}, forged...)...).echo(t)
	if ann.Headers["X-Consumer-Username"] != "ann" || ann.Headers["X-Consumer-Custom-Id"] != "c1" ||
		ann.Headers["X-Anonymous-Consumer"] != "" || ann.Headers["X-Credential-Identifier"] == "forged" {
		t.Errorf("ann: %v", ann.Headers)
	}
	if ann.Query != "apikey=k1&b=2" || ann.Path != "/x" {
		t.Errorf("ann: %+v", ann)
	}
	guest := send(t, g, append([]string{"GET /open HTTP/1.1", "Host: x"}, forged...)...).echo(t)
	if guest.Headers["X-Consumer-Username"] != "guest" || guest.Headers["X-Anonymous-Consumer"] != "true" ||
		guest.Headers["X-Consumer-Custom-Id"] != "" || guest.Headers["X-Credential-Identifier"] != "" {
		t.Errorf("guest: %v", guest.Headers)
	}
	bearing := "Authorization: Bearer " + token(t, "s1", jwt.MapClaims{"iss": "iss1"})
	either := send(t, g, "GET /either HTTP/1.1", "Host: x", bearing).echo(t)
	if either.Headers["X-Consumer-Username"] != "ann" || either.Headers["X-Anonymous-Consumer"] != "" {
		t.Errorf("either: %v", either.Headers)
	}
}

func TestTheGroupsOfAConsumerReplaceAHeaderOfTheClient(t *testing.T) {
	g := start(t, Options{Config: deckConfig(t, authed)})
	for line, want := range map[string]string{
		"GET /members?apikey=k2 HTTP/1.1": `"X-Consumer-Groups": "gold, eu"`,
		"GET /others?apikey=k1 HTTP/1.1":  `"X-Consumer-Groups": ""`,
	} {
		if got := send(t, g, line, "Host: x", "X-Consumer-Groups: staff"); !strings.Contains(got.body, want) {
			t.Errorf("%s: %d, want the header %s\n%s", line, got.status, want, got.body)
		}
	}
}
