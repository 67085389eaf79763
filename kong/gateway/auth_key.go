package gateway

import (
	"net/http"
	"strings"
)

// keyAuth is Kong's key-auth for keys in headers and the query.
type keyAuth struct {
	state                      *state
	names                      []string
	inHeader, inQuery          bool
	hide, onPreflight          bool
	anonymous, wwwAuthenticate string
}

func newKeyAuth(s *state, config map[string]any) *keyAuth {
	p := &keyAuth{
		state: s, names: textsOf(config, "key_names"),
		inHeader: boolOf(config, "key_in_header"), inQuery: boolOf(config, "key_in_query"),
		hide: boolOf(config, "hide_credentials"), onPreflight: boolOf(config, "run_on_preflight"),
		anonymous: textOf(config, "anonymous"), wwwAuthenticate: "Key",
	}
	if realm := textOf(config, "realm"); realm != "" {
		p.wwwAuthenticate = `Key realm="` + realm + `"`
	}
	return p
}

func (p *keyAuth) access(x *exchange, _ int) error {
	if !p.onPreflight && x.method == http.MethodOptions {
		return nil
	}
	if p.anonymous != "" && x.credentialID != "" {
		return nil // another auth plugin has recognised the caller
	}
	refusal := p.authenticate(x)
	switch {
	case refusal == "":
	case p.anonymous != "":
		x.fallBack(p.state, p.anonymous)
	default:
		x.challenge(refusal, p.wwwAuthenticate)
	}
	return nil
}

// authenticate gives Kong's message for a caller it does not recognise.
func (p *keyAuth) authenticate(x *exchange) string {
	key, refusal := p.find(x)
	if refusal != "" {
		return refusal
	}
	if key == "" {
		return "No API key found in request"
	}
	owner, known := p.state.keys[key]
	if !known {
		return "Unauthorized"
	}
	x.identify(owner.consumer, owner.id, owner.id)
	return ""
}

func (p *keyAuth) find(x *exchange) (key, refusal string) {
	query := decodeQuery(x.query(), 100)
	for _, name := range p.names {
		var value any
		if values := x.header[http.CanonicalHeaderKey(name)]; p.inHeader && len(values) > 0 {
			value = luaList(values)
		}
		if value == nil && p.inQuery {
			value = query[name]
		}
		switch v := value.(type) {
		case string:
			if p.hide {
				x.header.Del(name)
				x.dropArgument(name)
			}
			return v, ""
		case []any:
			return "", "Duplicate API key found"
		}
	}
	return "", ""
}

// dropArgument removes an argument from the query that goes to the service.
func (x *exchange) dropArgument(name string) {
	query := x.query()
	if query == "" {
		return
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		if key, _, _ := strings.Cut(pair, "="); unescapeArgument(key) != name {
			kept = append(kept, pair)
		}
	}
	query = strings.Join(kept, "&")
	x.upstream.query = &query
}
