package gateway

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Kong's PDK takes and returns Lua values: nil, bool, float64, string, []any, map[string]any. Kong encodes them as
// google.protobuf.Value without validating UTF-8, because header values are any bytes. The protobuf module fails on
// such strings, so the wire form is encoded and decoded here.

// Field numbers of google.protobuf.Value, of Struct's map entries and of the protocol's one-field messages.
const (
	valueNull   protowire.Number = 1
	valueNumber protowire.Number = 2
	valueString protowire.Number = 3
	valueBool   protowire.Number = 4
	valueStruct protowire.Number = 5
	valueList   protowire.Number = 6

	soleField  protowire.Number = 1
	entryKey   protowire.Number = 1
	entryValue protowire.Number = 2
)

var errMalformed = errors.New("malformed protobuf message")

// encodeValue encodes a Value. Kong writes 1 for the null enum, whose only member is 0.
func encodeValue(value any) []byte {
	var b []byte
	switch v := value.(type) {
	case nil:
		return protowire.AppendVarint(protowire.AppendTag(b, valueNull, protowire.VarintType), 1)
	case bool:
		return protowire.AppendVarint(protowire.AppendTag(b, valueBool, protowire.VarintType), protowire.EncodeBool(v))
	case float64:
		return protowire.AppendFixed64(protowire.AppendTag(b, valueNumber, protowire.Fixed64Type), math.Float64bits(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(b, valueString, protowire.BytesType), v)
	case []any:
		if len(v) == 0 {
			return appendNested(b, valueStruct, nil) // Lua has one empty table
		}
		var list []byte
		for _, item := range v {
			list = appendNested(list, soleField, encodeValue(item))
		}
		return appendNested(b, valueList, list)
	case map[string]any:
		return appendNested(b, valueStruct, encodeStruct(v))
	}
	panic(fmt.Sprintf("not a Lua value: %T", value)) // all values come from this package
}

func appendNested(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

// encodeStruct encodes a Struct, keys in order.
func encodeStruct(object map[string]any) []byte {
	var b []byte
	for _, key := range slices.Sorted(maps.Keys(object)) {
		entry := protowire.AppendString(protowire.AppendTag(nil, entryKey, protowire.BytesType), key)
		entry = appendNested(entry, entryValue, encodeValue(object[key]))
		b = appendNested(b, soleField, entry)
	}
	return b
}

// encodeString encodes a String, the zero value as an empty message.
func encodeString(s string) []byte {
	if s == "" {
		return nil
	}
	return protowire.AppendString(protowire.AppendTag(nil, soleField, protowire.BytesType), s)
}

// eachField calls visit for each field of a message.
func eachField(b []byte, visit func(number protowire.Number, payload []byte, scalar uint64) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var payload []byte
		var scalar uint64
		switch kind {
		case protowire.BytesType:
			payload, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			scalar, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			scalar, n = protowire.ConsumeFixed64(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := visit(number, payload, scalar); err != nil {
			return err
		}
	}
	return nil
}

// decodeString decodes String and ByteString.
func decodeString(b []byte) (s string, err error) {
	err = eachField(b, func(number protowire.Number, payload []byte, _ uint64) error {
		if number == soleField {
			s = string(payload)
		}
		return nil
	})
	return s, err
}

// maxDepth bounds the nesting of values that a plugin sends.
const maxDepth = 100

func decodeValue(b []byte, depth int) (value any, err error) {
	if depth > maxDepth {
		return nil, errors.New("value nested too deeply")
	}
	err = eachField(b, func(number protowire.Number, payload []byte, scalar uint64) (err error) {
		switch number {
		case valueNull: // Kong's decoder names members of an enum
			if value = any("NULL_VALUE"); scalar != 0 {
				value = float64(int32(scalar))
			}
		case valueNumber:
			value = math.Float64frombits(scalar)
		case valueString:
			value = string(payload)
		case valueBool:
			// Kong's decoder evaluates "bool_value or …", so false becomes nil
			if value = any(nil); scalar != 0 {
				value = true
			}
		case valueStruct:
			value, err = decodeStruct(payload, depth+1)
		case valueList:
			value, err = decodeList(payload, depth+1)
		}
		return err
	})
	return value, err
}

func decodeList(b []byte, depth int) (list []any, err error) {
	list = []any{}
	err = eachField(b, func(number protowire.Number, payload []byte, _ uint64) error {
		if number != soleField {
			return nil
		}
		item, err := decodeValue(payload, depth)
		list = append(list, item)
		return err
	})
	if end := slices.Index(list, nil); end >= 0 {
		list = list[:end] // Kong's encoder stops at a hole
	}
	return list, err
}

func decodeStruct(b []byte, depth int) (map[string]any, error) {
	object := map[string]any{}
	err := eachField(b, func(number protowire.Number, payload []byte, _ uint64) error {
		if number != soleField {
			return nil
		}
		key, value, err := decodeKV(payload, depth)
		if value != nil {
			object[key] = value
		}
		return err
	})
	return object, err
}

// decodeKV decodes KV, which has the shape of a Struct's map entry.
func decodeKV(b []byte, depth int) (key string, value any, err error) {
	err = eachField(b, func(number protowire.Number, payload []byte, _ uint64) (err error) {
		switch number {
		case entryKey:
			key = string(payload)
		case entryValue:
			value, err = decodeValue(payload, depth)
		}
		return err
	})
	return key, value, err
}
