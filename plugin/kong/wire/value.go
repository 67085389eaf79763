package wire

import (
	"encoding/binary"
	"errors"
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
