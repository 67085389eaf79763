package redisstore

import (
	"crypto/sha256"
	"encoding/base64"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// maxField is up to which length Redis keeps the fields of a small hash compactly (hash-max-listpack-value).
	maxField = 64
	// hashedField is how many bytes of a longer field's name are its hash: 128 bits in base64.
	hashedField = 22
)

// inHash tells whether the bucket is a field of its tenant's hash. Their number is bounded by configuration.
func inHash(k *policy.Key) bool { return k.Group == policy.ByTenant && k.Kind == policy.WholeGroup }

// together tells whether two keys have the same hash tag: a cluster keeps their buckets in one slot.
func together(a, b *policy.Key) bool { return a.Group == b.Group && a.Owner == b.Owner }

// sameHash tells whether two keys, of buckets that are fields, name the same hash.
func sameHash(a, b *policy.Key) bool { return a.Namespace == b.Namespace && a.Owner == b.Owner }

var (
	groupTags   = [...]string{policy.ByTenant: "{t", policy.ByIP: "{i", policy.ByEndpoint: "{e", policy.ByAll: "{g"}
	subjectTags = [...]string{policy.WholeGroup: ":w=", policy.KindUser: ":u=", policy.KindCredential: ":c=", policy.KindIP: ":i="}
)

// appendHash appends the key of the hash that holds a tenant's own buckets, and with which all keys of the same
// group begin.
func appendHash(b []byte, k *policy.Key) []byte {
	b = append(b, "rl:"...)
	b = appendPart(b, k.Namespace)
	b = append(b, ':')
	b = append(b, groupTags[k.Group]...)
	if k.Owner != "" || k.Group != policy.ByAll {
		b = append(b, '=')
		b = appendPart(b, k.Owner)
	}
	return append(b, '}')
}

// appendString appends the key of a bucket that is a string.
func appendString(b []byte, k *policy.Key) []byte {
	b = appendHash(b, k)
	b = append(b, ':')
	b = appendPart(b, k.Policy)
	if k.Kind != policy.WholeGroup || k.Subject != "" {
		b = append(b, subjectTags[k.Kind]...)
		b = appendPart(b, k.Subject)
	}
	if k.Endpoint != "" {
		b = append(b, ":e="...)
		b = appendPart(b, k.Endpoint)
	}
	return b
}

// appendField appends the field of a bucket that is one.
func appendField(b []byte, k *policy.Key) []byte {
	start := len(b)
	b = appendPart(b, k.Policy)
	if k.Subject != "" {
		b = append(b, subjectTags[k.Kind]...)
		b = appendPart(b, k.Subject)
	}
	if k.Endpoint != "" {
		b = append(b, ':')
		b = appendPart(b, k.Endpoint)
	}
	if len(b)-start <= maxField {
		return b
	}
	sum := sha256.Sum256(b[start:])
	b = append(b[:start+maxField-hashedField-1], '~') // which no part contains
	return base64.RawURLEncoding.AppendEncode(b, sum[:16])
}

// appendLog appends the key of the entries of a bucket that is a sliding log.
func appendLog(b []byte, k *policy.Key) []byte {
	b = appendString(b, k)
	return append(b, ":log"...)
}

// plain are the bytes that stand for themselves. The others have a meaning in keys, or none in a terminal.
var plain = func() (set [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._/@") {
		set[c] = true
	}
	return set
}()

// appendPart appends one part of a key, percent-encoded.
func appendPart(b []byte, part string) []byte {
	const hex = "0123456789ABCDEF"
	for i := range len(part) {
		if c := part[i]; plain[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return b
}
