package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/golang-jwt/jwt/v5"
)

// authPlugin is one configuration of a plugin that identifies consumers.
type authPlugin struct {
	config       *compiledConfig
	anonymous    string // the consumer of a request without a valid credential; "": it is denied
	authenticate func(x *exchange) (deny func())
}

// access identifies the consumer, or denies the request.
func (p authPlugin) access(x *exchange, _ int) error {
	if p.anonymous != "" && x.credentialID != "" {
		return nil // another auth plugin has identified the consumer
	}
	deny := p.authenticate(x)
	switch {
	case deny == nil:
	case p.anonymous != "":
		x.identifyAnonymous(p.config, p.anonymous)
	default:
		deny()
	}
	return nil
}

// identify sets the consumer for the plugins and the service, as set_consumer of Kong's auth plugins does. It replaces
// the headers of these names that the client sent. identifier is "" for the anonymous consumer.
func (x *exchange) identify(consumer *Consumer, credentialID, identifier string) {
	x.consumer, x.credentialID = consumer, credentialID
	anonymous := ""
	if credentialID == "" {
		anonymous = "true"
	}
	replaceRequestHeaders(x.header, map[string]string{
		"X-Consumer-Id": consumer.ID, "X-Consumer-Custom-Id": consumer.CustomID,
		"X-Consumer-Username": consumer.Username, "X-Credential-Identifier": identifier,
		"X-Anonymous-Consumer": anonymous,
	})
}

// replaceRequestHeaders sets each header, and drops those whose value is "".
func replaceRequestHeaders(header http.Header, values map[string]string) {
	for name, value := range values {
		if value == "" {
			header.Del(name)
			continue
		}
		header[name] = []string{value}
	}
}

// identifyAnonymous sets the anonymous consumer, which the setting names by id or by username.
func (x *exchange) identifyAnonymous(config *compiledConfig, setting string) {
	consumer := config.consumers[setting]
	if consumer == nil {
		x.fail(http.StatusInternalServerError,
			fmt.Sprintf("anonymous consumer %s is configured but doesn't exist", setting))
		return
	}
	x.identify(consumer, "", "")
}

// setting returns a field of a plugin config that its schema has checked; the zero value where it is null.
func setting[T any](config map[string]any, name string) T {
	value, _ := config[name].(T)
	return value
}

// listSetting returns a list of strings.
func listSetting(config map[string]any, name string) []string {
	var texts []string
	for _, item := range setting[[]any](config, name) {
		if s, ok := item.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// keyAuth simulates Kong's key-auth for keys in headers and in the query.
type keyAuth struct {
	config            *compiledConfig
	names             []string
	inHeader, inQuery bool
}

func newKeyAuth(c *compiledConfig, config map[string]any) authPlugin {
	p := &keyAuth{
		config: c, names: listSetting(config, "key_names"),
		inHeader: setting[bool](config, "key_in_header"), inQuery: setting[bool](config, "key_in_query"),
	}
	return authPlugin{c, setting[string](config, "anonymous"), p.authenticate}
}

// authenticate identifies the consumer by an API key, or returns Kong's denial.
func (p *keyAuth) authenticate(x *exchange) (deny func()) {
	message, keys := "", p.keys(x)
	switch {
	case len(keys) == 0 || len(keys) == 1 && keys[0] == "":
		message = "No API key found in request"
	case len(keys) > 1:
		message = "Duplicate API key found"
	default:
		credential, found := p.config.keys[keys[0]]
		if found {
			x.identify(credential.consumer, credential.id, credential.id)
			return nil
		}
		message = "Unauthorized"
	}
	return func() { x.fail(http.StatusUnauthorized, message, "WWW-Authenticate", "Key") }
}

// keys returns the values under the first name that the request has, a header before a query argument.
func (p *keyAuth) keys(x *exchange) []string {
	query := x.queryArguments()
	for _, name := range p.names {
		if values := x.header.Values(name); p.inHeader && len(values) > 0 {
			return values
		}
		if values := query[name]; p.inQuery && len(values) > 0 {
			return values
		}
	}
	return nil
}

// jwtAuth simulates Kong's jwt for tokens signed with HS256.
type jwtAuth struct {
	config             *compiledConfig
	headers, arguments []string
	keyClaim           string
	parser             *jwt.Parser
}

func newJWTAuth(c *compiledConfig, config map[string]any) authPlugin {
	p := &jwtAuth{
		config: c, headers: listSetting(config, "header_names"), arguments: listSetting(config, "uri_param_names"),
		keyClaim: setting[string](config, "key_claim_name"),
	}
	options := []jwt.ParserOption{jwt.WithPaddingAllowed(), jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()})}
	switch verified := listSetting(config, "claims_to_verify"); {
	case len(verified) == 0:
		options = append(options, jwt.WithoutClaimsValidation())
	case slices.Contains(verified, "exp"):
		options = append(options, jwt.WithExpirationRequired())
	}
	p.parser = jwt.NewParser(options...)
	return authPlugin{c, setting[string](config, "anonymous"), p.authenticate}
}

// authenticate identifies the consumer by a token, or returns Kong's denial.
func (p *jwtAuth) authenticate(x *exchange) (deny func()) {
	message, challenge := "Unauthorized", "Bearer"
	if tokens := p.tokens(x); len(tokens) > 0 {
		message, challenge = p.verify(x, tokens), `Bearer error="invalid_token"`
	}
	if message == "" {
		return nil
	}
	return func() {
		x.respond(http.StatusUnauthorized, fmt.Appendf(nil, `{"message":%q}`, message),
			"Content-Type", "application/json; charset=utf-8", "WWW-Authenticate", challenge)
	}
}

// verify identifies the consumer, or returns the message of Kong's denial.
func (p *jwtAuth) verify(x *exchange, tokens []string) (denial string) {
	if len(tokens) > 1 {
		return "Multiple tokens provided"
	}
	var name string
	var known credential
	claims := jwt.MapClaims{}
	_, err := p.parser.ParseWithClaims(tokens[0], claims, func(*jwt.Token) (any, error) {
		name, _ = claims[p.keyClaim].(string)
		known = p.config.secrets[name]
		return []byte(known.secret), nil
	})
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return "Bad token; invalid JSON"
	case claims[p.keyClaim] == nil:
		return fmt.Sprintf("No mandatory '%s' in claims", p.keyClaim)
	case known.consumer == nil:
		return fmt.Sprintf("No credentials found for given '%s'", p.keyClaim)
	case errors.Is(err, jwt.ErrTokenInvalidClaims):
		return "token expired"
	case err != nil:
		return "Invalid signature"
	}
	x.identify(known.consumer, known.id, name)
	put(&x.shared, "authenticated_jwt_token", tokens[0])
	return ""
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
