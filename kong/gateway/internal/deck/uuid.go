package deck

import (
	"crypto/sha1"
	"fmt"
	"regexp"
)

// kongNamespace is the namespace of the ids that a Kong without a database derives
// (kong/db/schema/others/declarative_config.lua): an entity's id is the version 5 UUID (RFC 9562 section 5.5) of its
// key in the namespace of its kind, which is the version 5 UUID of the kind's name in this one.
var kongNamespace = [16]byte{
	0xfd, 0x02, 0x80, 0x1f, 0x09, 0x57, 0x4a, 0x15, 0xa5, 0x5a, 0xc8, 0xd9, 0x60, 0x6f, 0x30, 0xb5,
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// derivedID returns the id that Kong gives an entity of kind (a table's name, such as "routes") that has none.
func derivedID(kind, key string) string {
	id := uuidV5(uuidV5(kongNamespace, kind), key)
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// pluginKey returns the key of a plugin's id: its name and its scope.
func pluginKey(name, route, service, consumer string) string {
	return fmt.Sprintf("plugins:*:%s:%s:%s:%s", name, route, service, consumer)
}

func uuidV5(namespace [16]byte, name string) [16]byte {
	sum := sha1.Sum(append(namespace[:], name...))
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}
