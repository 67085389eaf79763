package reservation

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// token travels with a request to its log phase, in kong.ctx.shared, where any plugin of Kong can change it. Beside the
// key of the reservation's record it has what another process needs: which store has the record, and what to read of
// the request before the record is there. All of it is checked, and none of it names a bucket or a number of tokens.
type token struct {
	key   string       // 128 random bits in hexadecimal digits
	store string       // fingerprint of the central store; "": the process that made the token has the reservation
	needs settle.Needs // where there is a store
}

// Bounds of a token.
const (
	maxToken    = 2048 // bytes
	maxNames    = 64   // of headers and shared values
	maxName     = 256  // bytes, with the letter before the name
	keyLength   = 32   // hexadecimal digits
	fingerprint = 16   // hexadecimal digits
)

// String returns the token as a text of lower-case letters, digits and punctuation. If it would be too long, only this
// process can settle the reservation.
func (t token) String() string {
	if t.store == "" {
		return t.key
	}
	var b strings.Builder
	b.WriteString(t.key + "." + t.store + ".")
	if t.needs.Log {
		b.WriteByte('l')
	}
	for _, name := range t.needs.Headers {
		b.WriteString(",h" + name)
	}
	for _, name := range t.needs.Shared {
		b.WriteString(",s" + name)
	}
	if b.Len() > maxToken || len(t.needs.Headers)+len(t.needs.Shared) > maxNames {
		return t.key
	}
	return b.String()
}

// parseToken reads a token, and reports whether the text is one. It runs twice for each request that settles.
func parseToken(text string) (t token, ok bool) {
	key, more, central := strings.Cut(text, ".")
	if len(text) > maxToken || !isHex(key, keyLength) {
		return t, false
	}
	if t.key = key; !central {
		return t, true
	}
	store, needs, complete := strings.Cut(more, ".")
	if !complete || !isHex(store, fingerprint) {
		return t, false
	}
	t.store = store
	return t, t.parseNeeds(needs)
}

// isHex reports whether a text is that many lower-case hexadecimal digits.
func isHex(text string, length int) bool {
	return len(text) == length && strings.Trim(text, "0123456789abcdef") == ""
}

// parseNeeds reads the needs of a token, and reports whether the text has some.
func (t *token) parseNeeds(text string) bool {
	if text == "" {
		return true // slots are released without a measurement
	}
	log, names, named := strings.Cut(text, ",")
	if t.needs.Log = log == "l"; !t.needs.Log && log != "" || !named {
		return t.needs.Log
	}
	if strings.Count(names, ",") >= maxNames {
		return false
	}
	for name := range strings.SplitSeq(names, ",") {
		switch {
		case len(name) < 2 || len(name) > maxName || strings.ContainsFunc(name, isNoNameRune):
			return false
		case name[0] == 'h':
			t.needs.Headers = append(t.needs.Headers, name[1:])
		case name[0] == 's':
			t.needs.Shared = append(t.needs.Shared, name[1:])
		default:
			return false
		}
	}
	t.needs = t.needs.Union(settle.Needs{}) // sorted, each name once
	return true
}

// isNoNameRune reports whether a rune is in no name of a header or a shared value that a rule may read.
func isNoNameRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}
