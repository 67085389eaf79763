// Package faultproxy stands between a client and a Redis and does what networks and servers do on a bad day: it is
// late, swallows bytes, refuses and resets connections, breaks off in the middle of a reply, or answers a command
// itself with an error. What it does can be changed at any time, by any goroutine; a new [Proxy] does no harm.
//
// It understands RESP, versions 2 and 3, as far as to know where a command or a reply ends and what a command is
// called, so that half a reply is half a reply and its own answers come in the order of the commands. A command has one
// reply: what is sent unasked (publish and subscribe, MONITOR) does not pass.
//
// The servers themselves, and what kills or stops them, are in internal/redistest.
package faultproxy
