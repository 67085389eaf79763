// Package faultproxy injects faults of networks and servers between a client and a Redis. A [Proxy] delays messages,
// drops bytes, stops listening, resets connections, breaks a reply off in the middle, or answers a command with an
// error. Any goroutine may change the faults at any time. A new Proxy has none.
//
// It parses RESP, versions 2 and 3, to find the ends of commands and replies and the names of commands. So half a reply
// is exact, and answers of the proxy come in the order of the commands. A command has one reply: messages that no
// command requests (publish and subscribe, MONITOR) do not pass.
//
// Package redistest starts, stops and kills the servers.
package faultproxy
