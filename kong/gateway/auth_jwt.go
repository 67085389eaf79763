package gateway

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// jwtAuth simulates Kong's jwt for tokens signed with HS256.
type jwtAuth struct {
	config             *compiledConfig
	headers, arguments []string
	keyClaim           string
	claimsToVerify     []string
}

func newJWTAuth(c *compiledConfig, config map[string]any) authPlugin {
	p := &jwtAuth{
		config: c, headers: listSetting(config, "header_names"), arguments: listSetting(config, "uri_param_names"),
		keyClaim: setting[string](config, "key_claim_name"), claimsToVerify: listSetting(config, "claims_to_verify"),
	}
	return authPlugin{c, setting[string](config, "anonymous"), p.authenticate}
}

// authenticate identifies the consumer by a token, or returns Kong's denial.
func (p *jwtAuth) authenticate(x *exchange) (deny func() error) {
	denial, challenge := map[string]string{"message": "Unauthorized"}, "Bearer"
	if tokens := p.tokens(x); len(tokens) > 0 {
		denial, challenge = p.verify(x, tokens), `Bearer error="invalid_token"`
	}
	if denial == nil {
		return nil
	}
	return func() error { return x.denyJSON(denial, challenge) }
}

var tokenParser = jwt.NewParser(jwt.WithoutClaimsValidation(), jwt.WithPaddingAllowed(),
	jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}))

// verify identifies the consumer, or returns the body of Kong's denial.
func (p *jwtAuth) verify(x *exchange, tokens []string) (denial map[string]string) {
	deny := func(format string, args ...any) map[string]string {
		return map[string]string{"message": fmt.Sprintf(format, args...)}
	}
	if len(tokens) > 1 {
		return deny("Multiple tokens provided")
	}
	claims := jwt.MapClaims{}
	token, _, err := tokenParser.ParseUnverified(tokens[0], claims)
	switch {
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return deny("Bad token; invalid alg")
	case err != nil:
		return deny("Bad token; invalid JSON")
	}
	key := claims[p.keyClaim]
	if key == nil {
		key = token.Header[p.keyClaim]
	}
	switch key {
	case nil:
		return deny("No mandatory '%s' in claims", p.keyClaim)
	case "":
		return deny("Invalid '%s' in claims", p.keyClaim)
	}
	name, _ := key.(string)
	credential, found := p.config.secrets[name]
	if !found {
		return deny("No credentials found for given '%s'", p.keyClaim)
	}
	if token.Method != jwt.SigningMethodHS256 {
		return deny("Invalid algorithm")
	}
	secret := func(*jwt.Token) (any, error) { return []byte(credential.secret), nil }
	if _, err := tokenParser.Parse(tokens[0], secret); err != nil {
		return deny("Invalid signature")
	}
	if faults := p.claimFaults(claims, time.Now()); len(faults) > 0 {
		return faults
	}
	x.identify(credential.consumer, credential.id, name)
	put(&x.shared, "authenticated_jwt_token", tokens[0])
	return nil
}

var bearer = regexp.MustCompile(`\s*[Bb]earer\s+(.+)`)

// tokens returns the distinct tokens of the query and the headers.
func (p *jwtAuth) tokens(x *exchange) []string {
	query := x.queryArguments()
	var tokens []string
	for _, name := range p.arguments {
		tokens = append(tokens, query[name]...)
	}
	for _, name := range p.headers {
		if match := bearer.FindStringSubmatch(x.header.Get(name)); match != nil {
			tokens = append(tokens, match[1])
		}
	}
	slices.Sort(tokens)
	return slices.DeleteFunc(slices.Compact(tokens), func(token string) bool { return token == "" })
}

// claimFaults returns Kong's message for each claim to verify that does not hold.
func (p *jwtAuth) claimFaults(claims jwt.MapClaims, now time.Time) map[string]string {
	faults, seconds := map[string]string{}, float64(now.Unix())
	for _, name := range p.claimsToVerify {
		value, isNumber := claims[name].(float64)
		switch {
		case !isNumber:
			faults[name] = "must be a number"
		case name == "exp" && value <= seconds:
			faults[name] = "token expired"
		case name == "nbf" && value > seconds:
			faults[name] = "token not valid yet"
		}
	}
	return faults
}
