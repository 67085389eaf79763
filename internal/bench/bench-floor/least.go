package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"
)

// serveLeast serves Kong with the least code that can: a goroutine and a small buffer for each connection, no limits,
// no deadlines, no drain. Every config denies.
func serveLeast(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept returns its error
	defer stop()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			if err := answer(conn); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				slog.Error("serve a connection", "error", err)
			}
			_ = conn.Close() // nothing is unsent
		}()
	}
}

var (
	question = appendFrames(nil, []byte(getConsumer), nil)
	exit     = appendFrames(nil, []byte("kong.response.exit"), exitArguments())
)

func exitArguments() []byte {
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 429)
	return protowire.AppendString(protowire.AppendTag(status, 2, protowire.BytesType), body)
}

// answer answers the calls of one connection until it ends: an event by a question and an exit, any other by the
// instance 1.
func answer(conn net.Conn) error {
	reader := bufio.NewReaderSize(conn, 1024)
	for {
		call, err := readFrame(reader)
		if err != nil {
			return err
		}
		sequence, isEvent := parseCall(call)
		if !isEvent {
			if _, err := conn.Write(instanceOne(sequence)); err != nil {
				return err
			}
			continue
		}
		if _, err := conn.Write(question); err != nil {
			return err
		}
		if _, err := readFrame(reader); err != nil {
			return err
		}
		if _, err := conn.Write(exit); err != nil {
			return err
		}
	}
}

// parseCall returns the sequence number of a call and whether it is an event.
func parseCall(call []byte) (sequence uint64, isEvent bool) {
	const sequenceField, eventField = 1, 36
	for len(call) > 0 {
		field, kind, n := protowire.ConsumeTag(call)
		if n < 0 {
			return 0, false
		}
		if field == sequenceField && kind == protowire.VarintType {
			sequence, _ = protowire.ConsumeVarint(call[n:])
		}
		isEvent = isEvent || field == eventField
		size := protowire.ConsumeFieldValue(field, kind, call[n:])
		if size < 0 {
			return 0, false
		}
		call = call[n+size:]
	}
	return sequence, isEvent
}

// instanceOne is the return of a call that starts or closes an instance.
func instanceOne(sequence uint64) []byte {
	status := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	message := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), sequence)
	message = protowire.AppendBytes(protowire.AppendTag(message, 33, protowire.BytesType), status)
	return appendFrames(nil, message)
}

func appendFrames(out []byte, payloads ...[]byte) []byte {
	for _, p := range payloads {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(p))), p...)
	}
	return out
}

// readFrame returns the next frame. An event and its answers fit into the reader; the config of an instance does not.
func readFrame(r *bufio.Reader) ([]byte, error) {
	header, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	size := int(binary.LittleEndian.Uint32(header))
	if _, err := r.Discard(4); err != nil {
		return nil, err
	}
	if size > r.Size() {
		frame := make([]byte, size)
		_, err := io.ReadFull(r, frame)
		return frame, err
	}
	frame, err := r.Peek(size)
	if err != nil {
		return nil, err
	}
	_, err = r.Discard(size)
	return frame, err
}
