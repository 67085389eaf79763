package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the protocol are encoded and decoded by hand: the generated code would reject identities that are not
// UTF-8, and would build a map for every set of headers. The tests compare with the generated code of go-pdk, which
// defines the messages (server/kong_plugin_protocol).

// command is a field number of the oneof of RpcCall, and of RpcReturn where that has a message. Kong 3.9 sends no
// others.
type command = protowire.Number

const (
	cmdStartInstance command = 33
	cmdCloseInstance command = 35
	cmdHandleEvent   command = 36
)

// call is a decoded RpcCall. Its byte slices point into the frame.
type call struct {
	sequence int64
	command  command // 0: unknown
	config   []byte
	instance int32
	event    []byte
}

// ErrMalformed is the error of an answer that is no protobuf message.
var ErrMalformed = errors.New("malformed protobuf")

// decodeFields calls yield for every field of a message. value holds the bytes of a length-delimited field, and is nil
// for a varint, which number holds. Fields of other wire types are skipped.
func decodeFields(message []byte, yield func(field protowire.Number, value []byte, number uint64)) error {
	for len(message) > 0 {
		field, wireType, n := protowire.ConsumeTag(message)
		if n < 0 {
			return ErrMalformed
		}
		message = message[n:]
		var value []byte
		var number uint64
		switch wireType {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(field, wireType, message)
		}
		if n < 0 {
			return ErrMalformed
		}
		message = message[n:]
		if wireType == protowire.BytesType || wireType == protowire.VarintType {
			yield(field, value, number)
		}
	}
	return nil
}

func decodeCall(frame []byte) (call, error) {
	var c call
	var body []byte
	err := decodeFields(frame, func(field protowire.Number, value []byte, number uint64) {
		switch {
		case field == 1 && value == nil:
			c.sequence = int64(number)
		case (field == cmdStartInstance || field == cmdCloseInstance || field == cmdHandleEvent) && value != nil:
			c.command, body = field, value
		}
	})
	if err == nil {
		err = decodeFields(body, func(field protowire.Number, value []byte, number uint64) {
			switch {
			case field == 1 && value == nil:
				c.instance = int32(number)
			case field == 2 && value != nil && c.command == cmdStartInstance:
				c.config = value
			case field == 2 && value != nil:
				c.event = value
			}
		})
	}
	if err != nil {
		return call{}, fmt.Errorf("decode call: %w", err)
	}
	return c, nil
}

// appendReturn appends the frame of an RpcReturn without a message: the call has ended.
func appendReturn(out []byte, sequence int64) []byte {
	out, start := openFrame(out)
	out = appendVarint(out, 1, uint64(sequence))
	closeFrame(out, start)
	return out
}

// appendStatus appends the frame of an RpcReturn with an InstanceStatus.
func appendStatus(out []byte, sequence int64, name string, id int32) []byte {
	status := appendVarint(appendString(nil, name), 2, uint64(id))
	out, start := openFrame(out)
	out = appendVarint(out, 1, uint64(sequence))
	out = protowire.AppendBytes(protowire.AppendTag(out, cmdStartInstance, protowire.BytesType), status)
	closeFrame(out, start)
	return out
}

// appendVarint appends a varint field unless it is 0, as proto3 does.
func appendVarint(out []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), n)
}

// appendString appends a string as the first field unless it is empty.
func appendString(out []byte, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, 1, protowire.BytesType), s)
}

// appendHeaders appends headers as the fields of a structpb.Struct: one map entry each, whose value is a string, which
// costs Kong less than a list of one.
func appendHeaders(out []byte, headers []Header) []byte {
	for _, h := range headers {
		text, entry := headerSizes(h)
		out = protowire.AppendVarint(protowire.AppendTag(out, 1, protowire.BytesType), uint64(entry))
		out = protowire.AppendString(protowire.AppendTag(out, 1, protowire.BytesType), h.Name)
		out = protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.BytesType), uint64(text))
		out = protowire.AppendBytes(protowire.AppendTag(out, 3, protowire.BytesType), h.Value)
	}
	return out
}

// headerSizes returns the size of the value of a header's map entry, and of the entry.
func headerSizes(h Header) (text, entry int) {
	text = protowire.SizeBytes(len(h.Value)) + 1 // string_value = 3
	return text, 1 + protowire.SizeBytes(len(h.Name)) + 1 + protowire.SizeBytes(text)
}

// appendSetHeaders appends the two frames of kong.response.set_headers.
func appendSetHeaders(out []byte, headers []Header) []byte {
	out = append(out, setHeadersMethod...)
	out, start := openFrame(out)
	out = appendHeaders(out, headers)
	closeFrame(out, start)
	return out
}

// appendSetShared appends the two frames of kong.ctx.shared.set with its KV: a key, and a google.protobuf.Value that is
// a string.
func appendSetShared(out []byte, key, text string) []byte {
	out = append(out, setSharedMethod...)
	out, start := openFrame(out)
	out = appendString(out, key)
	out = protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.BytesType),
		uint64(protowire.SizeTag(3)+protowire.SizeBytes(len(text))))
	out = protowire.AppendString(protowire.AppendTag(out, 3, protowire.BytesType), text)
	closeFrame(out, start)
	return out
}

// appendExit appends the two frames of kong.response.exit with its ExitArgs: status, body, headers.
func appendExit(out []byte, status int, headers []Header, body []byte) []byte {
	out = append(out, exitMethod...)
	out, start := openFrame(out)
	out = appendVarint(out, 1, uint64(status))
	if len(body) > 0 {
		out = protowire.AppendBytes(protowire.AppendTag(out, 2, protowire.BytesType), body)
	}
	if len(headers) > 0 {
		size := 0
		for _, h := range headers {
			_, entry := headerSizes(h)
			size += 1 + protowire.SizeBytes(entry)
		}
		out = protowire.AppendVarint(protowire.AppendTag(out, 3, protowire.BytesType), uint64(size))
		out = appendHeaders(out, headers)
	}
	closeFrame(out, start)
	return out
}
