package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestAnUnknownInstanceClosesTheConnectionAndAnUnknownEventDoesNot(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	if err := k.Event(99); err == nil {
		t.Error("an event of an unknown instance was answered; Kong would not start it anew")
	}
	k = h.dial()
	id := k.StartInstance(1, "{}")
	k.CallEvent(id, "rewrite")
	if end, err := k.Receive(); err != nil || len(end) != 0 {
		t.Errorf("an unknown event was answered %q, %v; want the end of the event", end, err)
	}
	if _, err := k.Return(); err != nil {
		t.Error(err)
	}
	k.Call(&pb.RpcCall{}) // a call without a command
	if _, err := k.Return(); err != nil {
		t.Errorf("an unknown call: %v", err)
	}
	k.Send([]byte{0xff, 0xff, 0xff})
	if _, err := k.Receive(); err == nil {
		t.Error("an unparseable frame did not close the connection")
	}
	h.log.Await(t, "cannot parse a call")
}

func TestAFrameOver64MiBClosesTheConnectionWithALogLine(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	if _, err := k.Conn.Write(binary.LittleEndian.AppendUint32(nil, maxFrame+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Receive(); err == nil {
		t.Error("the connection was not closed")
	}
	h.log.Await(t, "longer than 67108864 bytes")
}

func TestAnEventOverItsBudgetIsAnsweredAndItsLateAnswerSkipped(t *testing.T) {
	h := serve(t, greet, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.CallEvent(id, "access")
	for _, want := range []string{getConsumer, "", ""} { // the question, its arguments, and the end without an answer
		if frame, err := k.Receive(); err != nil || string(frame) != want {
			t.Fatalf("received %q, %v; want %q", frame, err, want)
		}
	}
	if _, err := k.Return(); err != nil {
		t.Fatal(err)
	}
	k.Send(kongtest.AnswersOf(t, "no-auth")["kong.client.get_consumer"]) // late
	late := h.answered(k, id)
	assert.Equal(t, alice, k.Headers["X-Consumer"], "headers %v: the next event got the late answer", k.Headers)
	assert.EqualValues(t, 1+late, h.Counters().Failures, "failures")
}

func TestAFrameThatArrivesByteByByteIsWhole(t *testing.T) {
	reader, writer := io.Pipe()
	go func() {
		for _, b := range appendFrame(appendFrame(nil, []byte("hello")), bytes.Repeat([]byte("y"), bufferSize+5)) {
			if _, err := writer.Write([]byte{b}); err != nil {
				return
			}
		}
		writer.Close()
	}()
	f := newFrameReader(reader)
	if frame, err := f.readFrame(maxFrame); err != nil || string(frame) != "hello" {
		t.Errorf("%q, %v", frame, err)
	}
	if frame, err := f.readFrame(maxFrame); err != nil || len(frame) != bufferSize+5 {
		t.Errorf("%d bytes, %v", len(frame), err)
	}
	if _, err := f.readFrame(maxFrame); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func TestConfigsWithoutASequenceGetDifferentInstances(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	// Kong sends 0 to every config when it cannot count, and the protocol takes 0 for absent.
	first := k.StartRaw([]byte(kongtest.WithSeq(0, "p1", "{}")))
	second := k.StartRaw([]byte(kongtest.WithSeq(0, "p2", "{}")))
	if first <= 0 || second <= 0 || first == second {
		t.Fatalf("the instances are %d and %d, want two ids above 0", first, second)
	}
	for _, id := range []int32{first, second} {
		if err := k.Event(id); err != nil || k.Headers["X-Consumer"] != alice {
			t.Errorf("instance %d: %v, headers %v", id, err, k.Headers)
		}
	}
	if err := h.dial().Event(0); err == nil {
		t.Error("an event that names no instance was answered")
	}
}

func TestConnectionsOfAnyKindAreServed(t *testing.T) {
	h := serveOn(t, greet, nil, func(l net.Listener) net.Listener { return plainListener{l} })
	k := h.dial()
	id := k.StartInstance(1, "{}")
	writes := h.writes()
	for range 3 {
		if err := k.Event(id); err != nil || k.Headers["X-Consumer"] != alice {
			t.Fatalf("%v, headers %v", err, k.Headers)
		}
	}
	if got := h.writes() - writes; got != 6 {
		t.Errorf("%d writes for 3 events, want 6", got)
	}
	assert.NoError(t, h.stop())
}
