package gateway

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// jwtAuth is Kong's jwt for tokens signed with HS256.
type jwtAuth struct {
	state                        *state
	headers, arguments, cookies  []string
	keyClaim, anonymous          string
	verify                       []string
	maxLifetime                  float64
	base64Secret, onPreflight    bool
	wwwAuthenticate, invalidAuth string
}

func newJWTAuth(s *state, config map[string]any) *jwtAuth {
	p := &jwtAuth{
		state: s, headers: textsOf(config, "header_names"), arguments: textsOf(config, "uri_param_names"),
		cookies: textsOf(config, "cookie_names"), keyClaim: textOf(config, "key_claim_name"),
		anonymous: textOf(config, "anonymous"), verify: textsOf(config, "claims_to_verify"),
		base64Secret: boolOf(config, "secret_is_base64"), onPreflight: boolOf(config, "run_on_preflight"),
		wwwAuthenticate: "Bearer", invalidAuth: `Bearer error="invalid_token"`,
	}
	p.maxLifetime, _ = config["maximum_expiration"].(float64)
	if realm := textOf(config, "realm"); realm != "" {
		p.wwwAuthenticate = `Bearer realm="` + realm + `"`
		p.invalidAuth = p.wwwAuthenticate + `, error="invalid_token"`
	}
	return p
}

func (p *jwtAuth) access(x *exchange, _ int) error {
	if !p.onPreflight && x.method == http.MethodOptions {
		return nil
	}
	if p.anonymous != "" && x.credentialID != "" {
		return nil
	}
	refusal, authenticate := p.authenticate(x)
	switch {
	case refusal == nil:
		return nil
	case p.anonymous != "":
		x.fallBack(p.state, p.anonymous)
		return nil
	}
	return x.exitJSON(http.StatusUnauthorized, refusal, authenticate)
}

// authenticate gives the body and the challenge for a caller whose token is
// missing or bad, and a nil body for one it recognised.
func (p *jwtAuth) authenticate(x *exchange) (refusal map[string]string, challenge string) {
	refuse := func(format string, args ...any) (map[string]string, string) {
		return map[string]string{"message": fmt.Sprintf(format, args...)}, p.invalidAuth
	}
	tokens := p.tokens(x)
	if len(tokens) == 0 {
		return map[string]string{"message": "Unauthorized"}, p.wwwAuthenticate
	}
	if len(tokens) > 1 {
		return refuse("Multiple tokens provided")
	}
	head, claims, fault := decodeToken(tokens[0])
	if fault != "" {
		return refuse("Bad token; %s", fault)
	}
	key := claims[p.keyClaim]
	if key == nil {
		key = head[p.keyClaim]
	}
	name, isText := key.(string)
	switch {
	case key == nil:
		return refuse("No mandatory '%s' in claims", p.keyClaim)
	case isText && name == "":
		return refuse("Invalid '%s' in claims", p.keyClaim)
	}
	owner, known := p.state.secrets[name]
	if !known {
		return refuse("No credentials found for given '%s'", p.keyClaim)
	}
	if head["alg"] != jwt.SigningMethodHS256.Alg() {
		return refuse("Invalid algorithm")
	}
	if !p.signed(tokens[0], owner.secret) {
		return refuse("Invalid signature")
	}
	if errs := p.claimErrors(claims, time.Now()); len(errs) > 0 {
		return errs, p.invalidAuth
	}
	x.identify(owner.consumer, owner.id, name)
	put(&x.shared, "authenticated_jwt_token", tokens[0])
	return nil, ""
}

var bearer = regexp.MustCompile(`\s*[Bb]earer\s+(.+)`)

// tokens are the distinct tokens of the query, the cookies and the headers.
func (p *jwtAuth) tokens(x *exchange) []string {
	var tokens []string
	add := func(token string) {
		if token != "" && !slices.Contains(tokens, token) {
			tokens = append(tokens, token)
		}
	}
	query := decodeQuery(x.query(), 100)
	for _, name := range p.arguments {
		switch v := query[name].(type) {
		case string:
			add(v)
		case []any:
			for _, item := range v {
				if s, ok := item.(string); ok {
					add(s)
				}
			}
		}
	}
	for _, name := range p.cookies {
		add(cookieValue(x.header, name))
	}
	for _, name := range p.headers {
		if match := bearer.FindStringSubmatch(x.header.Get(name)); match != nil {
			add(match[1])
		}
	}
	return tokens
}

// decodeToken splits a token without trusting it; fault says what is wrong
// with it in Kong's words.
func decodeToken(token string) (head, claims map[string]any, fault string) {
	parts := strings.SplitN(token, ".", 3)
	if len(parts) < 3 {
		return nil, nil, "invalid JSON"
	}
	for i, target := range []*map[string]any{&head, &claims} {
		raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[i], "="))
		if err != nil || json.Unmarshal(raw, target) != nil {
			return nil, nil, "invalid JSON"
		}
	}
	if algorithm, ok := head["alg"].(string); !ok || jwt.GetSigningMethod(algorithm) == nil || algorithm == "none" {
		return nil, nil, "invalid alg"
	}
	if claims == nil {
		return nil, nil, "invalid claims"
	}
	if _, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[2], "=")); err != nil {
		return nil, nil, "invalid signature"
	}
	return head, claims, ""
}

func (p *jwtAuth) signed(token, secret string) bool {
	key := []byte(secret)
	if p.base64Secret {
		decoded, err := base64.RawURLEncoding.DecodeString(
			strings.NewReplacer("+", "-", "/", "_").Replace(strings.TrimRight(secret, "=")))
		if err != nil {
			return false
		}
		key = decoded
	}
	dot := strings.LastIndexByte(token, '.')
	signature, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token[dot+1:], "="))
	return err == nil && jwt.SigningMethodHS256.Verify(token[:dot], signature, key) == nil
}

// claimErrors checks the registered claims that the config names; the body of
// the refusal has Kong's text for each.
func (p *jwtAuth) claimErrors(claims map[string]any, now time.Time) map[string]string {
	errs, seconds := map[string]string{}, float64(now.Unix())
	for _, name := range p.verify {
		value, isNumber := claims[name].(float64)
		switch {
		case !isNumber:
			errs[name] = "must be a number"
		case name == "exp" && value <= seconds:
			errs[name] = "token expired"
		case name == "nbf" && value > seconds:
			errs[name] = "token not valid yet"
		}
	}
	if exp, isNumber := claims["exp"].(float64); len(errs) == 0 && p.maxLifetime > 0 {
		if !isNumber || exp-seconds > p.maxLifetime {
			errs["exp"] = "exceeds maximum allowed expiration"
		}
	}
	return errs
}
