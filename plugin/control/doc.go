// Package control is the control plane's REST API: policies and overrides, what is in force for an org, what it has used,
// the audit, the fleet, and the decision API for callers that are not Kong.
//
// Every request is made by the holder of a token ([Caller]), whose role says what it may do; the name of the token is the
// actor of the audit. A write is one call of the repository, so it happens as a whole or not at all. Errors are problem
// documents (RFC 9457) that name the JSON path of every fault, all of them at once.
//
// Nobody overwrites what they have not seen: a change names the state that it was made from (If-Match), a POST may name
// itself (Idempotency-Key), and an answer can wait until the nodes enforce what was written (?wait=1s). The API limits
// itself by the same path that decides for the plugin.
//
// Whoever has a token may send anything, so a request costs no more than it may before it is understood: its body is
// read and its values are counted before one is made (shape), in room of which each token has a share (room), and
// unknown tokens are looked up so often for each address (lookups). Whoever sends many faulty requests waits for the
// answers (tarpit).
//
// The description of the API ([Server.OpenAPI], published as schema/openapi.yaml) is made from the types of this package,
// and its tests hold every operation to it.
//
// What does not live here: rows and their constraints (package pgstore, the only adapter that this one imports, because
// its rows are the resources), what rows mean (package policy), how a request is decided (package admit), and where
// buckets are kept (whoever implements [Buckets]). Flags, listeners and TLS are package controlserver's.
package control
