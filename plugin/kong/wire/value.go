package wire

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// ValueKind is the kind of a Value.
type ValueKind uint8

// The kinds of values.
const (
	NullValue   ValueKind = iota // nil, and false, which Kong does not keep
	TextValue                    // a string; Kong stores null as the string NULL_VALUE
	NumberValue                  // a number
	OtherValue                   // true, or a table
)

// Value is the answer of a method that returns any Lua value, such as kong.ctx.shared.get.
type Value struct {
	Kind   ValueKind
	Text   string  // of a TextValue
	Number float64 // of a NumberValue; it may be infinite or NaN
}

// DecodeValue returns the value of an answer. A table is an OtherValue, whose content is not decoded.
func DecodeValue(answer []byte) (Value, error) {
	var v Value
	for len(answer) > 0 {
		field, wireType, n := protowire.ConsumeTag(answer)
		if n < 0 {
			return Value{}, ErrMalformed
		}
		answer = answer[n:]
		if n = protowire.ConsumeFieldValue(field, wireType, answer); n < 0 {
			return Value{}, ErrMalformed
		}
		switch {
		case field == 1 && wireType == protowire.VarintType:
			v = Value{}
		case field == 2 && wireType == protowire.Fixed64Type:
			v = Value{Kind: NumberValue, Number: math.Float64frombits(binary.LittleEndian.Uint64(answer))}
		case field == 3 && wireType == protowire.BytesType:
			text, _ := protowire.ConsumeBytes(answer)
			v = Value{Kind: TextValue, Text: string(text)}
		case field == 4 && wireType == protowire.VarintType,
			(field == 5 || field == 6) && wireType == protowire.BytesType:
			v = Value{Kind: OtherValue}
		}
		answer = answer[n:]
	}
	return v, nil
}

// DecodeStringValue returns the string of a value, and "" for a value of another kind.
func DecodeStringValue(answer []byte) (string, error) {
	v, err := DecodeValue(answer)
	return v.Text, err
}

// DecodeHeaders calls visit for each header of the answer of a method that returns headers, such as
// kong.response.get_headers: a TextValue, or an OtherValue if it came more than once.
func DecodeHeaders(answer []byte, visit func(name string, value Value)) error {
	var malformed error
	err := decodeFields(answer, func(field protowire.Number, entry []byte, _ uint64) {
		if field != 1 {
			return
		}
		var name string
		var value Value
		err := decodeFields(entry, func(field protowire.Number, part []byte, _ uint64) {
			switch field {
			case 1:
				name = string(part)
			case 2:
				var err error
				if value, err = DecodeValue(part); err != nil {
					malformed = err
				}
			}
		})
		if malformed = errors.Join(malformed, err); malformed == nil {
			visit(name, value)
		}
	})
	return errors.Join(err, malformed)
}

const (
	internSets   = 128
	internPerSet = 4
	internLength = 128 // bytes; a longer string is not kept
)

// Interner returns strings for bytes, and allocates nothing for those that it has returned lately. A plugin keeps one
// for each connection, for consumers, tags and values of headers. The strings do not refer to the bytes. Make one with
// NewInterner; a nil Interner copies always.
type Interner struct {
	seed maphash.Seed
	sets [internSets][internPerSet]string // each with the latest first
}

// NewInterner returns an empty interner.
func NewInterner() *Interner { return &Interner{seed: maphash.MakeSeed()} }

// String returns b as a string.
func (n *Interner) String(b []byte) string {
	if n == nil || len(b) == 0 || len(b) > internLength {
		return string(b)
	}
	set := &n.sets[maphash.Bytes(n.seed, b)%internSets]
	for i, kept := range set {
		if kept == string(b) {
			copy(set[1:i+1], set[:i])
			set[0] = kept
			return kept
		}
	}
	copy(set[1:], set[:internPerSet-1])
	set[0] = string(b)
	return set[0]
}

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
	entry := appendString(nil, name)
	entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(s, 1, protowire.BytesType), entry)
}

// SetSerializeValue makes Kong's log plugins write value under a key. See [Event.Call].
func (e *Event) SetSerializeValue(key string, value Struct) {
	message := appendString(nil, key)
	field := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), value)
	message = protowire.AppendBytes(protowire.AppendTag(message, 2, protowire.BytesType), field)
	e.Call("kong.log.set_serialize_value", message)
}
