package gateway

import "net/http"

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
func (p *keyAuth) authenticate(x *exchange) (deny func() error) {
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
	return func() error {
		x.fail(http.StatusUnauthorized, message, "WWW-Authenticate", "Key")
		return nil
	}
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
