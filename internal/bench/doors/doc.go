// Package doors measures the door for Envoy of ratelimit serve beside envoyproxy/ratelimit: make bench-doors. It has
// only a test, whose build tag is doors, because it needs both programs.
package doors
