package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// authenticate identifies the consumer by a credential, or denies the request.
func (c *PluginCall) authenticate(by func(*PluginCall) (deny func())) {
	anonymous := setting[string](c.Config, "anonymous") // the consumer without a valid credential; "": it is denied
	if anonymous != "" && c.x.credentialID != "" {
		return // another auth plugin has identified the consumer
	}
	deny := by(c)
	switch {
	case deny == nil:
	case anonymous != "":
		c.x.identifyAnonymous(anonymous)
	default:
		deny()
	}
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
func (x *exchange) identifyAnonymous(setting string) {
	consumer := x.config.consumers[setting]
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
func keyAuth(c *PluginCall) { c.authenticate(byKey) }

// byKey identifies the consumer by an API key, or returns Kong's denial.
func byKey(c *PluginCall) (deny func()) {
	x, message, keys := c.x, "", apiKeys(c)
	switch {
	case len(keys) == 0 || len(keys) == 1 && keys[0] == "":
		message = "No API key found in request"
	case len(keys) > 1:
		message = "Duplicate API key found"
	default:
		credential, found := x.config.keys[keys[0]]
		if found {
			x.identify(credential.consumer, credential.id, credential.id)
			return nil
		}
		message = "Unauthorized"
	}
	return func() { x.fail(http.StatusUnauthorized, message, "WWW-Authenticate", "Key") }
}

// apiKeys returns the values under the first name that the request has, a header before a query argument.
func apiKeys(c *PluginCall) []string {
	inHeader, inQuery := setting[bool](c.Config, "key_in_header"), setting[bool](c.Config, "key_in_query")
	query := c.x.queryArguments()
	for _, name := range listSetting(c.Config, "key_names") {
		if values := c.x.header.Values(name); inHeader && len(values) > 0 {
			return values
		}
		if values := query[name]; inQuery && len(values) > 0 {
			return values
		}
	}
	return nil
}

// jwtAuth simulates Kong's jwt for tokens signed with HS256.
func jwtAuth(c *PluginCall) { c.authenticate(byToken) }

// byToken identifies the consumer by a token, or returns Kong's denial.
func byToken(c *PluginCall) (deny func()) {
	message, challenge := "Unauthorized", "Bearer"
	if tokens := tokensOf(c); len(tokens) > 0 {
		message, challenge = verify(c, tokens), `Bearer error="invalid_token"`
	}
	if message == "" {
		return nil
	}
	return func() {
		c.x.respond(http.StatusUnauthorized, fmt.Appendf(nil, `{"message":%q}`, message),
			"Content-Type", "application/json; charset=utf-8", "WWW-Authenticate", challenge)
	}
}

// tokenParser returns the parser that verifies the claims of the config.
func tokenParser(config map[string]any) *jwt.Parser {
	options := []jwt.ParserOption{jwt.WithPaddingAllowed(), jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()})}
	switch verified := listSetting(config, "claims_to_verify"); {
	case len(verified) == 0:
		options = append(options, jwt.WithoutClaimsValidation())
	case slices.Contains(verified, "exp"):
		options = append(options, jwt.WithExpirationRequired())
	}
	return jwt.NewParser(options...)
}

// verify identifies the consumer, or returns the message of Kong's denial.
func verify(c *PluginCall, tokens []string) (denial string) {
	if len(tokens) > 1 {
		return "Multiple tokens provided"
	}
	var name string
	var known credential
	claims, keyClaim := jwt.MapClaims{}, setting[string](c.Config, "key_claim_name")
	_, err := tokenParser(c.Config).ParseWithClaims(tokens[0], claims, func(*jwt.Token) (any, error) {
		name, _ = claims[keyClaim].(string)
		known = c.x.config.secrets[name]
		return []byte(known.secret), nil
	})
	switch {
	case errors.Is(err, jwt.ErrTokenMalformed):
		return "Bad token; invalid JSON"
	case claims[keyClaim] == nil:
		return fmt.Sprintf("No mandatory '%s' in claims", keyClaim)
	case known.consumer == nil:
		return fmt.Sprintf("No credentials found for given '%s'", keyClaim)
	case errors.Is(err, jwt.ErrTokenInvalidClaims):
		return "token expired"
	case err != nil:
		return "Invalid signature"
	}
	c.x.identify(known.consumer, known.id, name)
	c.SetShared("authenticated_jwt_token", tokens[0])
	return ""
}

var bearer = regexp.MustCompile(`\s*[Bb]earer\s+(.+)`)

// tokensOf returns the distinct tokens of the query and the headers.
func tokensOf(c *PluginCall) []string {
	query := c.x.queryArguments()
	var tokens []string
	for _, name := range listSetting(c.Config, "uri_param_names") {
		tokens = append(tokens, query[name]...)
	}
	for _, name := range listSetting(c.Config, "header_names") {
		if match := bearer.FindStringSubmatch(c.x.header.Get(name)); match != nil {
			tokens = append(tokens, match[1])
		}
	}
	slices.Sort(tokens)
	return slices.DeleteFunc(slices.Compact(tokens), func(token string) bool { return token == "" })
}

// acl simulates Kong's acl: it admits consumers of the groups of allow, or those of none of the groups of deny. The
// service, and plugins that run later, see all groups of the consumer in a header.
func acl(c *PluginCall) {
	x := c.x
	if x.consumer == nil {
		x.fail(http.StatusUnauthorized, "Unauthorized")
		return
	}
	names := make([]string, len(x.consumer.Groups))
	for i, group := range x.consumer.Groups {
		names[i] = group.Name
	}
	allow, deny := listSetting(c.Config, "allow"), listSetting(c.Config, "deny")
	isIn := func(groups []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(groups, name) })
	}
	if allow != nil && !isIn(allow) || isIn(deny) {
		x.fail(http.StatusForbidden, "You cannot consume this service")
		return
	}
	if hide := setting[bool](c.Config, "hide_groups_header"); !hide {
		x.header["X-Consumer-Groups"] = []string{strings.Join(names, ", ")}
	}
}
