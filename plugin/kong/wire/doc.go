// Package wire serves Kong's plugin-server protocol: it lets a Go program be an external plugin of Kong Gateway. It
// replaces the server of go-pdk and is independent of what a plugin does.
//
// A plugin gives [New] a function that starts an instance from a config. Kong starts one instance of each config in
// each of its workers, and then sends the requests of that config as events. An instance handles an event with
// [Event.Ask], [Event.Call], [Event.SetShared], [Event.SetHeaders] and [Event.Exit]. The example is a complete plugin.
//
// # Phases
//
// Kong sends the events of the phases that the output of its query command names: [PhaseAccess], before the request
// goes to the upstream, or [PhaseLog], after the client has its response. A plugin that needs both for a part of its
// routes only is best two plugins in one process, each with a [Server] and a socket of its own: the log phase costs
// Kong more than the access phase does. What one plugin knows in access it hands to the other with [Event.SetShared].
//
// In the log phase Kong answers few methods: kong.response.get_status, get_source, get_header and get_headers,
// kong.request.get_header and get_headers, kong.ctx.shared.get, kong.nginx.get_ctx, kong.log.serialize, and those for
// the consumer, the credential, the route and the service. Any other raises a Lua error: Kong closes the connection,
// logs one line, and does not send the event again.
//
// # Cost
//
// One connection is one goroutine. Its memory is reused from event to event, about 30 KiB unless frames are long, and
// then for another connection: Kong abandons a connection with each [Event.Exit], and the server closes it. The server
// allocates nothing for an event. [Event.Ask] sends any number of questions in one write and reads all answers; the
// headers, the end of the event and the return of the call share another write. What costs Kong is the number of
// questions, about 7 µs each.
//
// The number of connections is not bounded: the socket is for Kong's workers, which open one for each request that they
// handle at once. An idle connection may stay open for ever; a frame that has begun to arrive may not.
//
// # Failures
//
// The protocol has no error reply. A connection that closes during an event means that the instance is lost: Kong
// resets all instances of the plugin and replays the event repeatedly. So the server closes a connection during an
// event only for an unknown instance and for a frame that it cannot parse. It skips an answer that is late or too long,
// and returns the error to the instance. A replayed event is a new event for the plugin. A panic is answered by the
// instance's Fault, and ends neither the process nor the connection.
//
// A Lua error in a method that a plugin calls ends the request with a 500, which no plugin can prevent. Call only
// methods that cannot raise one.
package wire
