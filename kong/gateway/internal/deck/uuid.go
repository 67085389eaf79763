package deck

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
)

// kongNamespace is the namespace of the ids that a Kong without a database
// derives (kong/db/schema/others/declarative_config.lua): an entity's id is the
// version 5 UUID (RFC 9562 section 5.5) of its key in its kind's namespace,
// which is that of the kind's name in this one.
var kongNamespace = [16]byte{
	0xfd, 0x02, 0x80, 0x1f, 0x09, 0x57, 0x4a, 0x15, 0xa5, 0x5a, 0xc8, 0xd9, 0x60, 0x6f, 0x30, 0xb5,
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// IsUUID reports whether s has the form of Kong's ids.
func IsUUID(s string) bool { return uuidPattern.MatchString(s) }

// derivedID is the id Kong gives an entity of kind (a table's name, such as
// "routes") that has none of its own.
func derivedID(kind, key string) string {
	return formatUUID(uuidV5(uuidV5(kongNamespace, kind), key))
}

// pluginKey is the key of a plugin's id: name and scope, where a parent counts
// by its id and a reference by what the file says.
func pluginKey(name, route, service, consumer string) string {
	return fmt.Sprintf("plugins:*:%s:%s:%s:%s", name, route, service, consumer)
}

func uuidV5(namespace [16]byte, name string) [16]byte {
	sum := sha1.Sum(append(namespace[:], name...))
	var id [16]byte
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}

func formatUUID(id [16]byte) string {
	digits := hex.EncodeToString(id[:])
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}
