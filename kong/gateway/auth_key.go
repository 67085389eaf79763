package gateway

import "net/http"

// keyAuth simulates Kong's key-auth for keys in headers and in the query.
type keyAuth struct {
	config            *compiledConfig
	names             []string
	inHeader, inQuery bool
	anonymous         string
}

func newKeyAuth(c *compiledConfig, config map[string]any) *keyAuth {
	return &keyAuth{
		config: c, names: listSetting(config, "key_names"), anonymous: setting[string](config, "anonymous"),
		inHeader: setting[bool](config, "key_in_header"), inQuery: setting[bool](config, "key_in_query"),
	}
}

// access identifies the consumer by an API key, or denies the request.
func (p *keyAuth) access(x *exchange, _ int) error {
	if p.anonymous != "" && x.credentialID != "" {
		return nil // another auth plugin has identified the consumer
	}
	denial := p.authenticate(x)
	switch {
	case denial == "":
	case p.anonymous != "":
		x.identifyAnonymous(p.config, p.anonymous)
	default:
		x.fail(http.StatusUnauthorized, denial, "WWW-Authenticate", "Key")
	}
	return nil
}

// authenticate identifies the consumer, or returns the message of Kong's denial.
func (p *keyAuth) authenticate(x *exchange) (denial string) {
	keys := p.keys(x)
	if len(keys) == 0 || len(keys) == 1 && keys[0] == "" {
		return "No API key found in request"
	}
	if len(keys) > 1 {
		return "Duplicate API key found"
	}
	credential, found := p.config.keys[keys[0]]
	if !found {
		return "Unauthorized"
	}
	x.identify(credential.consumer, credential.id, credential.id)
	return ""
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
