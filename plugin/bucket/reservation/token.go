package reservation

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// id identifies a reservation: 128 random bits.
type id [16]byte

// key returns the key of the reservation's record.
func (i id) key() string { return hex.EncodeToString(i[:]) }

// token travels with a request to its log phase, in kong.ctx.shared, where any plugin of Kong can change it. Beside the
// id it has what another process needs: which store has the record, and what to read of the request before the record
// is there. All of it is checked, and none of it names a bucket or a number of tokens.
type token struct {
	id    id
	store string       // fingerprint of the central store; "": the process that made the token has the reservation
	needs settle.Needs // where there is a store
}

// Bounds of a token.
const (
	maxToken    = 2048 // bytes
	maxNames    = 64   // of headers and shared values
	maxName     = 256  // bytes
	fingerprint = 16   // hexadecimal digits
)

// String returns the token as a text of lower-case letters, digits and punctuation. If it would be too long, only this
// process can settle the reservation.
func (t token) String() string {
	key := t.id.key()
	if t.store == "" {
		return key
	}
	var b strings.Builder
	b.WriteString(key + "." + t.store + ".")
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
		return key
	}
	return b.String()
}

// parseToken reads a token, and reports whether the text is one.
func parseToken(text string) (t token, ok bool) {
	if len(text) > maxToken {
		return token{}, false
	}
	key, more, central := strings.Cut(text, ".")
	if len(key) != hex.EncodedLen(len(t.id)) {
		return token{}, false
	}
	if _, err := hex.Decode(t.id[:], []byte(key)); err != nil || !central {
		return t, err == nil
	}
	store, needs, ok := strings.Cut(more, ".")
	if !ok || len(store) != fingerprint || strings.Trim(store, "0123456789abcdef") != "" {
		return token{}, false
	}
	t.store = store
	return t, t.parseNeeds(needs)
}

// parseNeeds reads the needs of a token, and reports whether the text has some.
func (t *token) parseNeeds(text string) bool {
	first, names, _ := strings.Cut(text, ",")
	if t.needs.Log = first == "l"; !t.needs.Log && first != "" {
		return false
	}
	if names == "" {
		return t.needs.Log && !strings.HasSuffix(text, ",")
	}
	list := strings.Split(names, ",")
	if len(list) > maxNames {
		return false
	}
	for _, name := range list {
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
	slices.Sort(t.needs.Headers)
	slices.Sort(t.needs.Shared)
	t.needs.Headers, t.needs.Shared = slices.Compact(t.needs.Headers), slices.Compact(t.needs.Shared)
	return true
}

// isNoNameRune reports whether a rune is in no name of a header or a shared value that a rule may read.
func isNoNameRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}
