package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Struct is an encoded google.protobuf.Struct, a Lua table in Kong. Its methods return it with one more field. The zero
// value has none.
type Struct []byte

// Text adds a string, unless it is empty.
func (s Struct) Text(name, value string) Struct {
	if value == "" {
		return s
	}
	return s.add(name, protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), value))
}

// Number adds a number.
func (s Struct) Number(name string, value int64) Struct {
	bits := math.Float64bits(float64(value))
	return s.add(name, protowire.AppendFixed64(protowire.AppendTag(nil, 2, protowire.Fixed64Type), bits))
}

// Flag adds a boolean, unless it is false.
func (s Struct) Flag(name string, value bool) Struct {
	if !value {
		return s
	}
	return s.add(name, protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 1))
}

// add adds an entry of the map: a name and a google.protobuf.Value.
func (s Struct) add(name string, value []byte) Struct {
	entry := appendString(nil, 1, name)
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(s, 1, protowire.BytesType), entry)
}

// SetSerializeValue makes Kong's log plugins write value under a key. See [Event.Call].
func (e *Event) SetSerializeValue(key string, value Struct) {
	message := appendString(nil, 1, key)
	field := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), value)
	message = protowire.AppendBytes(protowire.AppendTag(message, 2, protowire.BytesType), field)
	e.Call("kong.log.set_serialize_value", message)
}
