package redis

import (
	"strconv"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// sameGroup reports whether two keys have the same hash tag: a cluster keeps their buckets in one slot.
func sameGroup(a, b *policy.Key) bool { return a.Group == b.Group && a.GroupID == b.GroupID }

// subjectOf returns what the keys of a subject's buckets have in common. The buckets lie in one Redis key.
func subjectOf(k *policy.Key) policy.Key {
	common := *k
	common.Policy, common.Endpoint, common.Slots = "", "", false
	return common
}

func sameSubject(a, b *policy.Key) bool { return subjectOf(a) == subjectOf(b) }

var (
	groupTags = [...]string{
		policy.ByTenant: "{t", policy.ByIP: "{i", policy.ByEndpoint: "{e", policy.ByAll: "{g",
	}
	subjectTags = [...]string{
		policy.WholeGroup: ":w=", policy.KindUser: ":u=", policy.KindCredential: ":c=", policy.KindIP: ":i=",
	}
)

// appendSubject appends the Redis key that holds the bucket, and all others of its subject.
func appendSubject(b []byte, k *policy.Key) []byte {
	b = append(b, "rl:"...)
	b = appendPart(b, k.Namespace)
	b = append(b, ':')
	b = append(b, groupTags[k.Group]...)
	if k.GroupID != "" || k.Group != policy.ByAll {
		b = append(b, '=')
		b = appendPart(b, k.GroupID)
	}
	b = append(b, '}')
	if k.Kind != policy.WholeGroup || k.Subject != "" {
		b = append(b, subjectTags[k.Kind]...)
		b = appendPart(b, k.Subject)
	}
	return b
}

// appendLog appends the Redis key of what a bucket keeps beside its subject's string: the entries of a sliding log, or
// the slots of a concurrency limit.
func appendLog(b []byte, k *policy.Key) []byte {
	if k.Slots {
		return appendBucket(b, k, ":slots:")
	}
	return appendBucket(b, k, ":log:")
}

// appendDemand appends the Redis key that holds what nodes report about a bucket that is shared fairly.
func appendDemand(b []byte, k *policy.Key) []byte { return appendBucket(b, k, ":fair:") }

func appendBucket(b []byte, k *policy.Key, kind string) []byte {
	b = appendPart(append(appendSubject(b, k), kind...), k.Policy)
	if k.Endpoint != "" {
		b = appendPart(append(b, ':'), k.Endpoint)
	}
	return b
}

// appendNodes appends the Redis key that holds the nodes which use the namespace.
func appendNodes(b []byte, namespace string) []byte {
	return append(appendPart(append(b, "rl:"...), namespace), ":{n}"...)
}

func appendRecord(b []byte, namespace, key string) []byte {
	b = append(appendPart(append(b, "rl:"...), namespace), ":{r="...)
	return append(appendPart(b, key), '}')
}

// probeKey returns one of the keys that a probe writes; they differ in their slots. No namespace begins with a brace,
// so no bucket has this key.
func probeKey(i int) string { return "rl:{" + strconv.Itoa(i) + "}" }

// appendChunk appends the Redis key of a chunk of the bucket's subject.
func appendChunk(b []byte, k *policy.Key, chunk int) []byte {
	return strconv.AppendInt(append(appendSubject(b, k), ":#"...), int64(chunk), 10)
}

// nameSize is the length of a bucket's name in bytes.
const nameSize = 6

// noEndpoint is the first byte of the names of buckets without an endpoint.
const noEndpoint = 0

// appendName appends the bucket's name among the names of its subject: a byte of the endpoint's hash, by which the
// buckets of one endpoint lie together, and 40 bits of the hash of policy and endpoint, both FNV-1a. Both are from the
// configuration, so no client can choose them. That two of a thousand endpoints' names are equal has a chance of 1 in
// 500 million, and two of ten policies' of one endpoint one of 1 in 20 billion.
func appendName(b []byte, k *policy.Key) []byte {
	const offset, prime = 14695981039346656037, 1099511628211
	h, place := uint64(offset), byte(noEndpoint)
	for i := range len(k.Policy) {
		h = (h ^ uint64(k.Policy[i])) * prime
	}
	if k.Endpoint != "" {
		h = (h ^ 0x100) * prime // not a byte, so it ends the policy's name
		endpoint := uint64(offset)
		for i := range len(k.Endpoint) {
			h = (h ^ uint64(k.Endpoint[i])) * prime
			endpoint = (endpoint ^ uint64(k.Endpoint[i])) * prime
		}
		place = byte((endpoint^endpoint>>32)%255) + 1
	}
	h ^= h >> 40 // so that the bits that are left out count too
	return append(b, place, byte(h), byte(h>>8), byte(h>>16), byte(h>>24), byte(h>>32))
}

// unescaped holds the bytes that stand for themselves. The others have a meaning in keys, or none in a terminal.
var unescaped = func() (set [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._/@") {
		set[c] = true
	}
	return set
}()

// appendPart appends one part of a key, percent-encoded.
func appendPart(b []byte, part string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(part) {
		if c := part[i]; unescaped[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return b
}
