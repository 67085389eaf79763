package addresses

import (
	"math"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// keyBytes is the size of a key in the store, with a bucket or two in it and the store's own tables.
const keyBytes = 230

// How the store keeps the entries of a sliding log, see bucket/redis/lua/sliding_log.lua.
const (
	logHead, logEntry = 15, 14 // bytes
	// logExpired is how many expired entries a log always keeps. Beyond, it is rewritten when more than half have expired.
	logExpired = 64
	// growth bounds the spare bytes that the server adds to a string; below, it doubles the string.
	growth = 1 << 20
)

// logBytes returns the most bytes that the sliding log of a bound may take in the store, its key included; 0: the bound
// has none. An allocator rounds up by a quarter at most. Names are percent-encoded, each byte as three.
func logBytes(b *policy.Bound) uint32 {
	l := &b.Policy.Limit
	if l.Spec().Algorithm != limit.SlidingLog {
		return 0
	}
	most := l.Capacity() // an entry spends one token at least
	length := logHead + logEntry*max(2*most, most+logExpired)
	value := (length + min(length, growth)) * 5 / 4
	return uint32(min(keyBytes+3*int64(len(b.Key.Policy)+len(b.Key.Endpoint))+value, math.MaxUint32))
}
