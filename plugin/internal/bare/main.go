// The command bare is what the benchmark of denials compares the plugin with: about each request it asks who the
// consumer is, and then ends the request with a short body. There is no cheaper plugin that denies by name.
//
// With -loop own it serves Kong with the least code that can: a goroutine and a small buffer for each connection, no
// limits, no deadlines, no drain. With -loop kongwire it is the same plugin on the plugin's own server.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kongwire"
)

func main() {
	prefix := flag.String("kong-prefix", "/usr/local/kong", "directory of the socket")
	loop := flag.String("loop", "own", "what serves Kong: own or kongwire")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	err := serve(ctx, filepath.Join(*prefix, "bare.socket"), *loop, log)
	stop()
	if err != nil {
		log.Error("the server ends", "error", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, socket, loop string, log *slog.Logger) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	log.Info("serving Kong", "socket", socket)
	switch loop {
	case "own":
		return serveOwn(ctx, listener)
	case "kongwire":
		start := func(kongwire.Config) kongwire.Instance { return kongwire.Instance{Access: deny} }
		return kongwire.New(kongwire.Options{Name: "bare", Start: start, Log: log}).Serve(ctx, listener)
	}
	return fmt.Errorf("-loop: %q is neither own nor kongwire", loop)
}

const body = `{"message":"API rate limit exceeded"}`

var consumer = []kongwire.Question{kongwire.NewQuestion("kong.client.get_consumer", "")}

// deny is the plugin on kongwire.
func deny(_ context.Context, e *kongwire.Event) error {
	err := e.Ask(consumer, func(int, []byte) error { return nil })
	e.Exit(429, nil, []byte(body))
	return err
}

func serveOwn(ctx context.Context, listener net.Listener) error {
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
			if err := answer(conn); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				slog.Error("serve a connection", "error", err)
			}
			_ = conn.Close() // nothing is unsent
		}()
	}
}

var (
	question = appendFrames(nil, []byte("kong.client.get_consumer"), nil)
	exit     = appendFrames(nil, []byte("kong.response.exit"), exitArguments())
)

func exitArguments() []byte {
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 429)
	return protowire.AppendString(protowire.AppendTag(status, 2, protowire.BytesType), body)
}

// answer answers the calls of one connection: an event by a question and an exit, any other by the instance 1.
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
