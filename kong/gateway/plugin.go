package gateway

import "net/http"

// Plugin is a plugin that runs within the gateway, as those that come with Kong run within Kong. Its functions may be
// nil. They are called for several requests at a time.
type Plugin struct {
	Info *PluginInfo
	// Access runs in the access phase, in the order of the plugins' priorities, until one ends the request.
	Access func(*PluginCall)
	// BodyFilter reads each chunk of the response before the client gets it, and then its end: nothing, with last. A
	// response that the client or the upstream breaks off has no end.
	BodyFilter func(c *PluginCall, chunk []byte, last bool)
}

// PluginCall is one request, as a Plugin sees it in all phases.
type PluginCall struct {
	// Config is the plugin's config, with its defaults and without nulls.
	Config map[string]any
	// Own is kong.ctx.plugin: Lua values of this plugin by key.
	Own map[string]any

	plugin *innerPlugin
	x      *exchange
}

// RequestHeader returns the first line of a header of the request, or "".
func (c *PluginCall) RequestHeader(name string) string { return c.x.header.Get(name) }

// Shared returns a value of kong.ctx.shared: nil, bool, float64, string, []any or map[string]any.
func (c *PluginCall) Shared(key string) any { return c.x.shared[key] }

// SetShared sets a value of kong.ctx.shared.
func (c *PluginCall) SetShared(key string, value any) { put(&c.x.shared, key, value) }

// SetSerializeValue adds a value to the log entry, as kong.log.set_serialize_value does.
func (c *PluginCall) SetSerializeValue(key string, value any) { setSerializeValue(c.x, key, value) }

// Exit ends the request with an answer in place of the upstream's, as kong.response.exit does in the access phase.
func (c *PluginCall) Exit(status int, body []byte) {
	c.x.exit = &Exit{Status: status, Body: body, Header: http.Header{}}
}

// innerPlugin is one configuration of a Plugin.
type innerPlugin struct {
	*Plugin
	config map[string]any
}

// access implements accessHandler.
func (p *innerPlugin) access(x *exchange, _ int) error {
	if p.Access != nil {
		p.Access(x.callOf(p))
	}
	return nil
}

// callOf returns the call of a plugin, a new one the first time.
func (x *exchange) callOf(p *innerPlugin) *PluginCall {
	for _, call := range x.calls {
		if call.plugin == p {
			return call
		}
	}
	call := &PluginCall{Config: p.config, Own: map[string]any{}, plugin: p, x: x}
	x.calls = append(x.calls, call)
	return call
}

// filterBody passes a chunk of the response, or its end, to the plugins in their order.
func (x *exchange) filterBody(chunk []byte, last bool) {
	for _, call := range x.calls {
		if call.plugin.BodyFilter != nil {
			call.plugin.BodyFilter(call, chunk, last)
		}
	}
}
