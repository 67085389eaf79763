package gateway

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
)

func TestEveryRecordedRequestLineIsAnsweredAsByARealKong(t *testing.T) {
	var seen []string
	fakeSeen := func(e *fakeEvent) {
		answers, err := e.ask(question{"kong.request.get_path", nil}, question{"kong.nginx.get_var", encodeString("request")})
		if err != nil {
			return
		}
		for _, a := range answers {
			s, _ := decodeString(a)
			seen = append(seen, s)
		}
		e.end()
	}
	g, _ := withFake(t, `
services:
- {name: up, host: echo.internal, routes: [{name: norm, paths: [/norm], plugins: [{name: rec}]}]}
`, fakeSeen)
	file, err := os.Open("testdata/paths.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows := 0
	for lines := bufio.NewScanner(file); lines.Scan(); rows++ {
		var row struct {
			RequestLine   string `json:"request_line"`
			Status        int
			ReachedPlugin bool   `json:"reached_plugin"`
			GetPath       string `json:"get_path"`
			GetVarRequest string `json:"get_var_request"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		seen = nil
		got := send(t, g, row.RequestLine)
		if got.status != row.Status || (seen != nil) != row.ReachedPlugin {
			t.Errorf("%s: status %d, reached %v", row.RequestLine, got.status, seen != nil)
		}
		if row.ReachedPlugin && (seen[0] != row.GetPath || seen[1] != row.GetVarRequest) {
			t.Errorf("%s: plugin saw %q", row.RequestLine, seen)
		}
	}
	if rows < 30 {
		t.Errorf("only %d rows", rows)
	}
}

func TestBadTargetsNeverReachAPlugin(t *testing.T) {
	g, _ := withFake(t, oneRoute, func(e *fakeEvent) { e.end() })
	for _, line := range []string{
		"GET /../x HTTP/1.1", "GET /a%00 HTTP/1.1", "GET /a%2f..%2f..%2f HTTP/1.1", "OPTIONS * HTTP/1.1",
	} {
		if got := send(t, g, line); got.status != 400 {
			t.Errorf("%s: status %d", line, got.status)
		}
	}
	if n := g.Counters().Questions(); n != 0 || g.Counters().Starts() != 0 {
		t.Errorf("%d questions", n)
	}
}

const authed = `
services:
- name: echo
  host: echo.internal
  routes:
  - {name: keyed, paths: [/keyed], plugins: [{name: key-auth, config: {key_names: [apikey, X-Key]}}]}
  - {name: open, paths: [/open], plugins: [{name: key-auth, config: {anonymous: nobody}}]}
  - {name: broken, paths: [/broken], plugins: [{name: key-auth, config: {anonymous: ghost}}]}
  - {name: token, paths: [/token], plugins: [{name: jwt, config: {claims_to_verify: [exp]}}]}
  - name: either
    paths: [/either]
    plugins: [{name: jwt, config: {anonymous: nobody}}, {name: key-auth, config: {anonymous: nobody}}]
consumers:
- {username: nobody}
- {username: ann, custom_id: c1, keyauth_credentials: [{key: k1}], jwt_secrets: [{key: iss1, secret: s1}]}
`

func token(t *testing.T, secret string, claims jwt.MapClaims) string {
	t.Helper()
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// echoed is what the built-in upstream saw.
type echoed struct {
	Method, Path, Query, Host string
	Headers                   map[string]string
}

func (a answer) echo(t *testing.T) echoed {
	t.Helper()
	var e echoed
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return e
}

func TestCallersAreDeniedInKongsWords(t *testing.T) {
	g := started(t, Options{Config: deckConfig(t, authed)})
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
	if expired.status != 401 || expired.body != `{"exp":"token expired"}` {
		t.Errorf("expired: %d %s", expired.status, expired.body)
	}
	valid := token(t, "s1", jwt.MapClaims{"iss": "iss1", "exp": far})
	good := send(t, g, "GET /token HTTP/1.1", "Host: x", "Authorization: bearer "+valid)
	if good.status != 200 || good.echo(t).Headers["X-Credential-Identifier"] != "iss1" {
		t.Errorf("good token: %d %s", good.status, good.body)
	}
}

func TestTheUpstreamSeesWhoCalledAndNoForgery(t *testing.T) {
	g := started(t, Options{Config: deckConfig(t, authed)})
	forged := []string{
		"X-Consumer-Username: forged", "X-Anonymous-Consumer: true", "X-Credential-Identifier: forged",
		"X-Consumer-Custom-Id: forged",
	}
	ann := send(t, g, append([]string{"GET /keyed/x?apikey=k1&b=2 HTTP/1.1", "Host: x"}, forged...)...).echo(t)
	if ann.Headers["X-Consumer-Username"] != "ann" || ann.Headers["X-Consumer-Custom-Id"] != "c1" ||
		ann.Headers["X-Anonymous-Consumer"] != "" || ann.Headers["X-Credential-Identifier"] == "forged" {
		t.Errorf("ann: %v", ann.Headers)
	}
	if ann.Query != "apikey=k1&b=2" || ann.Path != "/x" ||
		ann.Headers["X-Forwarded-Prefix"] != "/keyed" || ann.Headers["X-Forwarded-Path"] != "/keyed/x" {
		t.Errorf("ann: %+v", ann)
	}
	nobody := send(t, g, append([]string{"GET /open HTTP/1.1", "Host: x"}, forged...)...).echo(t)
	if nobody.Headers["X-Consumer-Username"] != "nobody" || nobody.Headers["X-Anonymous-Consumer"] != "true" ||
		nobody.Headers["X-Consumer-Custom-Id"] != "" || nobody.Headers["X-Credential-Identifier"] != "" {
		t.Errorf("nobody: %v", nobody.Headers)
	}
	bearing := "Authorization: Bearer " + token(t, "s1", jwt.MapClaims{"iss": "iss1"})
	either := send(t, g, "GET /either HTTP/1.1", "Host: x", bearing).echo(t)
	if either.Headers["X-Consumer-Username"] != "ann" || either.Headers["X-Anonymous-Consumer"] != "" {
		t.Errorf("either: %v", either.Headers)
	}
}

func TestRoutesOfHTTPSAloneAskForIt(t *testing.T) {
	g := started(t, Options{Config: deckConfig(t, `
services:
- name: echo
  host: echo.internal
  routes:
  - {name: a, paths: [/a], protocols: [https]}
  - {name: c, paths: [/c], strip_path: false, methods: [PURGE, GET]}
routes:
- {name: alone, paths: [/alone]}
`)})
	if got := send(t, g, "GET /a HTTP/1.1"); got.status != 426 || got.header.Get("Upgrade") == "" {
		t.Errorf("%d %v", got.status, got.lines)
	}
	got := send(t, g, "PURGE //c/%7Ex? HTTP/1.1", "Host: h.test").echo(t)
	if got.Path != "/c/~x" || got.Host != EchoHost || got.Method != "PURGE" {
		t.Errorf("%+v", got)
	}
	if got := send(t, g, "GET /alone HTTP/1.1"); got.status != 503 {
		t.Errorf("no service: %d", got.status)
	}
}

func TestTheAddressInXRealIPCountsOnlyFromTrustedPeers(t *testing.T) {
	for _, c := range []struct {
		trusted []string
		sent    []string
		want    string
	}{
		{nil, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"10.0.0.0/8"}, []string{"1.1.1.1"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, nil, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1"}, "1.1.1.1"},
		{[]string{"127.0.0.0/8"}, []string{"1.1.1.1", "2.2.2.2, 3.3.3.3"}, "3.3.3.3"},
		{[]string{"127.0.0.1"}, []string{"1.1.1.1, junk"}, "127.0.0.1"},
		{[]string{"127.0.0.1"}, []string{"2001:db8::1"}, "2001:db8::1"},
	} {
		trusted, err := parseTrusted(c.trusted)
		if err != nil {
			t.Fatal(err)
		}
		if ip := trusted.clientIP("127.0.0.1", http.Header{"X-Real-Ip": c.sent}); ip != c.want {
			t.Errorf("%+v: %s", c, ip)
		}
	}
	if _, err := parseTrusted([]string{"nonsense"}); err == nil {
		t.Error("nonsense is trusted")
	}
}

func TestSettingsOfBundledPluginsThatAreNotSimulatedAreDenied(t *testing.T) {
	err := CheckConfig(deckConfig(t, `
consumers: [{username: u}]
plugins:
- {name: jwt, config: {maximum_expiration: 5, claims_to_verify: [aud], cookie_names: [c], realm: r}}
- {name: key-auth, consumer: u, config: {key_names: ["a b"], key_in_body: true, hide_credentials: true}}
- {name: other}
`))
	for _, want := range []string{
		"plugins[0].config.claims_to_verify[0]: expected one of: exp, nbf",
		"plugins[0].config.realm: realms are not simulated",
		"plugins[0].config.maximum_expiration: a maximum is not simulated",
		"plugins[1].config.key_names[0]: invalid value: a b",
		"plugins[0].config.cookie_names: tokens in cookies are not simulated", "hidden credentials are not simulated",
		"plugins[1].config.key_in_body: keys in bodies are not simulated", "plugins[1].consumer: value must be null",
		"plugins[2]: plugin 'other' not enabled",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no fault %q in %v", want, err)
		}
	}
}
