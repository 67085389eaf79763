package reservation

import (
	"regexp"
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
	maxToken = 2048 // bytes
	maxNames = 64   // of headers and shared values
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

// tokenForm matches a token. Its groups are the key, the store, whether the log is read, and the names.
var tokenForm = regexp.MustCompile(`^([0-9a-f]{32})(?:\.([0-9a-f]{16})\.(l?)((?:,[hs][-\w.]{1,255})*))?$`)

// parseToken reads a token, and reports whether the text is one.
func parseToken(text string) (t token, ok bool) {
	if len(text) > maxToken {
		return t, false
	}
	groups := tokenForm.FindStringSubmatch(text)
	if groups == nil {
		return t, false
	}
	t.key, t.store, t.needs.Log = groups[1], groups[2], groups[3] != ""
	names := strings.Split(groups[4], ",")[1:]
	for _, name := range names {
		if name[0] == 'h' {
			t.needs.Headers = append(t.needs.Headers, name[1:])
		} else {
			t.needs.Shared = append(t.needs.Shared, name[1:])
		}
	}
	t.needs = t.needs.Union(settle.Needs{}) // sorted, each name once
	return t, len(names) <= maxNames && (t.store == "" || t.needs.Log || len(names) > 0)
}
