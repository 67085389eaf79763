// Package gateway is a small stand-in for Kong Gateway 3.9, for demos, specs and benchmarks on a machine without Kong.
// It reads the decK file that a real Kong would, routes, authenticates (key-auth, jwt) and authorizes (acl) as Kong
// does, starts a plugin server as Kong would, speaks Kong's plugin-server protocol with it over the unix socket, and
// proxies to the upstream.
//
// A plugin sees the same as in Kong: the config of StartInstance, one instance per worker and config, answers to PDK
// questions in the access and the log phase, exits, gRPC over HTTP/2 without TLS, replays of a lost event, respawns,
// normalised paths, and the most specific config. A plugin gets the events of the phases that its info names. The PDK
// methods are those that the plugin asks ([pdkMethods], [logMethods]), the fields of entities those that an example or
// spec sets. Any other method or field is an error; an nginx variable that is not simulated reads as empty.
//
// Log events are sent once the client has its response, and no request waits for them. A log entry has the request, the
// response and the latencies. Its sizes are those of HTTP/1.1 as Kong writes it.
//
// A test may bring further plugins of Kong's as Go functions ([Plugin]), for the access phase and the body filter.
//
// Other phases and plugins, most rules of schemas, TLS, patterns and wildcards in routes, paths of services, load
// balancing, retries and the Admin API are not simulated.
//
// The package has no code for a particular plugin: it reads the plugin's schema from -dump.
package gateway
