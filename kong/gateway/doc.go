// Package gateway is a small stand-in for Kong Gateway 3.9, for demos, specs
// and benchmarks on a machine without Kong. It reads the decK file that a real
// Kong would, routes and authenticates as Kong does (key-auth, jwt), starts a
// plugin server as Kong would and speaks Kong's plugin-server protocol with it
// over the unix socket, and proxies to the upstream.
//
// It is faithful where a plugin can tell: the schema from -dump, the config
// handed to StartInstance, one instance per worker and config, the answers of
// the PDK in the access phase, exits, gRPC over HTTP/2 without TLS, replays of a lost event,
// respawns, path normalisation, and the most-specific-config rule. Not here: other phases and
// plugins, TLS listeners, load balancing, the Admin API, retries.
//
// It knows nothing of any particular plugin but what the plugin's server says,
// and imports nothing of one: they meet on the socket.
package gateway
