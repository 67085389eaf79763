package kongplugin

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
)

// The messages of the protocol, encoded and decoded by hand: the generated code would refuse identities that are not
// UTF-8 and would build a map for every set of headers. The tests hold these against the generated code of go-pdk,
// where the messages are defined (server/kong_plugin_protocol).

type command int

// Field numbers of RpcCall's oneof.
const (
	cmdGetPluginNames    command = 31
	cmdGetPluginInfo     command = 32
	cmdStartInstance     command = 33
	cmdGetInstanceStatus command = 34
	cmdCloseInstance     command = 35
	cmdHandleEvent       command = 36
)

// call is a decoded RpcCall. Its byte slices point into the frame.
type call struct {
	sequence int64
	command  command // 0: none that we know
	config   []byte
	instance int32
	event    []byte
}

var errMalformed = errors.New("malformed protobuf")

// fields calls yield for every field of a message: value holds the bytes of a length-delimited field and is nil for a
// varint, which number holds. Other wire types are passed over.
func fields(message []byte, yield func(field protowire.Number, value []byte, number uint64)) error {
	for len(message) > 0 {
		field, wireType, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		switch wireType {
		case protowire.BytesType:
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return errMalformed
			}
			yield(field, value, 0)
			message = message[n:]
		case protowire.VarintType:
			number, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return errMalformed
			}
			yield(field, nil, number)
			message = message[n:]
		default:
			n := protowire.ConsumeFieldValue(field, wireType, message)
			if n < 0 {
				return errMalformed
			}
			message = message[n:]
		}
	}
	return nil
}

func decodeCall(frame []byte) (call, error) {
	var c call
	var body []byte
	err := fields(frame, func(field protowire.Number, value []byte, number uint64) {
		switch {
		case field == 1 && value == nil:
			c.sequence = int64(number)
		case command(field) >= cmdGetPluginNames && command(field) <= cmdHandleEvent && value != nil:
			c.command, body = command(field), value
		}
	})
	if err != nil {
		return call{}, fmt.Errorf("decode call: %w", err)
	}
	err = fields(body, func(field protowire.Number, value []byte, number uint64) {
		switch {
		case field == 1 && value == nil:
			c.instance = int32(number)
		case field == 2 && value != nil && c.command == cmdStartInstance:
			c.config = value
		case field == 2 && value != nil:
			c.event = value
		}
	})
	if err != nil {
		return call{}, fmt.Errorf("decode call: %w", err)
	}
	return c, nil
}

// appendReturn appends the frame of an RpcReturn that says no more than that the call is done.
func appendReturn(out []byte, sequence int64) []byte {
	out, start := beginFrame(out)
	out = appendVarint(out, 1, uint64(sequence))
	endFrame(out, start)
	return out
}

// appendStatus appends the frame of an RpcReturn with an InstanceStatus.
func appendStatus(out []byte, sequence int64, name string, id int32, startedAt int64) []byte {
	var status []byte
	status = appendString(status, 1, name)
	status = appendVarint(status, 2, uint64(id))
	status = appendVarint(status, 4, uint64(startedAt))
	return appendReturnOf(out, sequence, 33, status)
}

// appendReturnOf appends the frame of an RpcReturn whose oneof is the given message.
func appendReturnOf(out []byte, sequence int64, field protowire.Number, message []byte) []byte {
	out, start := beginFrame(out)
	out = appendVarint(out, 1, uint64(sequence))
	out = protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), message)
	endFrame(out, start)
	return out
}

// appendVarint appends a varint field; zero is left out, as proto3 does.
func appendVarint(out []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), n)
}

func appendString(out []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, field, protowire.BytesType), s)
}

// decodeString reads the String message: a text, or "".
func decodeString(frame []byte, known *names) (string, error) {
	var text string
	err := fields(frame, func(field protowire.Number, value []byte, _ uint64) {
		if field == 1 && value != nil {
			text = known.text(value)
		}
	})
	return text, err
}

// decodeStringValue reads a structpb.Value: its string, or "" for every other kind.
func decodeStringValue(frame []byte) (string, error) {
	var text string
	err := fields(frame, func(field protowire.Number, value []byte, _ uint64) {
		if field == 3 && value != nil {
			text = string(value)
		}
	})
	return text, err
}

func decodeConsumer(frame []byte, known *names, c *identity.Consumer) error {
	c.ID, c.Username, c.CustomID, c.Tags = "", "", "", c.Tags[:0]
	return fields(frame, func(field protowire.Number, value []byte, _ uint64) {
		if value == nil {
			return
		}
		switch field {
		case 1:
			c.ID = known.text(value)
		case 3:
			c.Username = known.text(value)
		case 4:
			c.CustomID = known.text(value)
		case 5:
			c.Tags = append(c.Tags, known.text(value))
		}
	})
}

// decodeRoute reads a Route's name, or its id when it has none, and whether gRPC is among its protocols.
func decodeRoute(frame []byte, known *names) (name string, grpc bool, err error) {
	var id string
	err = fields(frame, func(field protowire.Number, value []byte, _ uint64) {
		if value == nil {
			return
		}
		switch field {
		case 1:
			id = known.text(value)
		case 4:
			name = known.text(value)
		case 5:
			grpc = grpc || string(value) == "grpc" || string(value) == "grpcs"
		}
	})
	if name == "" {
		name = id
	}
	return name, grpc, err
}

// appendHeaders appends headers as the fields of a structpb.Struct: one map entry each, with a plain string as value
// (which costs Kong less than a list of one).
func appendHeaders(out []byte, headers []response.Header) []byte {
	for _, h := range headers {
		text := protowire.SizeBytes(len(h.Value)) + 1 // string_value = 3
		entry := 1 + protowire.SizeBytes(len(h.Name)) + 1 + protowire.SizeBytes(text)
		out = protowire.AppendVarint(protowire.AppendTag(out, 1, protowire.BytesType), uint64(entry))
		out = protowire.AppendString(protowire.AppendTag(out, 1, protowire.BytesType), h.Name)
		out = protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.BytesType), uint64(text))
		out = protowire.AppendBytes(protowire.AppendTag(out, 3, protowire.BytesType), h.Value)
	}
	return out
}

// appendSetHeaders appends the two frames of kong.response.set_headers.
func appendSetHeaders(out []byte, headers []response.Header) []byte {
	out = append(out, setHeadersMethod...)
	out, start := beginFrame(out)
	out = appendHeaders(out, headers)
	endFrame(out, start)
	return out
}

// appendExit appends the two frames of kong.response.exit with its ExitArgs: status, body, headers.
func appendExit(out []byte, r *response.Response) []byte {
	out = append(out, exitMethod...)
	out, start := beginFrame(out)
	out = appendVarint(out, 1, uint64(r.Status))
	if len(r.Body) > 0 {
		out = protowire.AppendBytes(protowire.AppendTag(out, 2, protowire.BytesType), r.Body)
	}
	if len(r.Headers) > 0 {
		size := 0
		for _, h := range r.Headers {
			text := protowire.SizeBytes(len(h.Value)) + 1
			size += 1 + protowire.SizeBytes(1+protowire.SizeBytes(len(h.Name))+1+protowire.SizeBytes(text))
		}
		out = protowire.AppendVarint(protowire.AppendTag(out, 3, protowire.BytesType), uint64(size))
		out = appendHeaders(out, r.Headers)
	}
	endFrame(out, start)
	return out
}

// PluginInfo encodes the PluginInfo message: what CmdGetPluginInfo is answered.
func PluginInfo(name, version string, priority int32, kongSchema []byte) []byte {
	info := appendString(nil, 1, name)
	info = appendString(info, 4, "access")
	info = appendString(info, 5, version)
	info = appendVarint(info, 6, uint64(priority))
	return appendString(info, 7, string(kongSchema))
}
