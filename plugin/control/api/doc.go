// Package api serves the REST API of the control plane: policies and overrides, the limits in force and the usage
// of an org, the audit, the fleet, and the decision API for callers other than Kong.
//
// Every request carries a token ([Caller]), whose role says what it may do; the name of the token is the actor in the
// audit. A write is one call of the store, so it happens as a whole or not at all. Errors are problem documents (RFC
// 9457) that list every fault with its JSON path.
//
// Concurrent writers do not overwrite each other: a change names the state that it was made from (If-Match), a POST may
// carry a key (Idempotency-Key), and a write can wait until all nodes enforce it (?wait=1s). The API limits itself with
// the decision path of the plugin.
//
// A token may send anything, so the cost of a request is bounded before the request is decoded: the values of its body
// are counted first (inspect), and large bodies are decoded one after the other (readLarge).
//
// The types of reasons, waits, cursors and times check themselves: huma calls their Resolve wherever an input has a
// field of them. An input must not embed a struct with a Resolve beside others, because huma skips the fields of those.
//
// The types of this package define the description of the API ([Server.OpenAPI], published as schema/openapi.yaml);
// tests check every operation against it.
//
// Other packages hold the resources and their constraints (rows), the meaning of rows (policy), the decision about a
// request (admit), and the buckets (implementations of [Buckets]). Flags, listeners and TLS belong to package server.
package api
