package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnIncompleteCallClosesItsConnectionAndAnIdleOneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := servePipes(t, greet, unwrapped)
		idle, half := connect(), connect()
		half.Write(appendFrame(nil, make([]byte, 100))[:50])
		before := time.Now()
		require.NoError(t, half.Conn.SetReadDeadline(before.Add(time.Hour)))
		if _, err := half.Conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%v; want the connection closed", err)
		}
		if waited := time.Since(before); waited < frameTime || waited > frameTime+h.budget/8 { // when the watchdog looks
			t.Errorf("closed after %v, want %v", waited, frameTime)
		}
		h.log.Await(t, "a frame began and did not end")
		time.Sleep(time.Hour) // on the virtual clock
		assert.EqualValues(t, 1, idle.StartInstance(1, "{}"), "an idle connection answers")
	})
}

func TestACallThatComesInPartsIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, connect := servePipes(t, greet, unwrapped)
		k := connect()
		id := k.StartInstance(1, "{}")
		for range 3 {
			k.Sequence++
			call := appendFrame(nil, appendVarint(nil, 1, uint64(k.Sequence)))
			for _, part := range [][]byte{call[:2], call[2:5], call[5:]} {
				k.Write(part)
				time.Sleep(frameTime - time.Second) // on the virtual clock
			}
			if _, err := k.Return(); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Event(id); err != nil || k.Headers["X-Consumer"] != alice {
			t.Errorf("%v, headers %v", err, k.Headers)
		}
	})
}

func TestALateAndTooLongAnswerIsSkipped(t *testing.T) {
	h := serve(t, greet, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.Begin(id, getConsumer)
	answer := appendFrame(nil, make([]byte, maxAnswer+1))
	k.Write(answer[:100])
	if end, err := k.Receive(); err != nil || len(end) != 0 { // no question before it: the budget is over
		t.Fatalf("received %q, %v; want the end of the event", end, err)
	}
	if _, err := k.Return(); err != nil {
		t.Fatal(err)
	}
	k.Write(answer[100:])
	h.answered(k, id)
	assert.Equal(t, alice, k.Headers["X-Consumer"], "headers %v of the next event", k.Headers)
}

func TestAnEventWithoutAnAnswerInTimeIsLoggedWithItsBudget(t *testing.T) {
	h := serve(t, greet, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	k.Begin(k.StartInstance(1, "{}"), getConsumer)
	if line := h.log.Await(t, "an event failed"); !strings.Contains(line, "time budget of 20ms") {
		t.Errorf("the line does not say what was exceeded: %s", line)
	}
}

func TestAConnectionThatBreaksDuringAnEventIsLoggedUnlessKongHasClosedIt(t *testing.T) {
	h := serve(t, greet, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.Begin(id, getConsumer)
	require.NoError(t, k.Conn.Close())
	k = h.dial()
	k.Begin(id, getConsumer)
	k.Write(binary.LittleEndian.AppendUint32(nil, maxFrame+1))
	if _, err := k.Receive(); err == nil {
		t.Error("the connection was not closed")
	}
	if line := h.log.Await(t, "connection closed"); !strings.Contains(line, "longer than 67108864 bytes") {
		t.Errorf("logged %s, want only the connection that Kong did not close", line)
	}
}

// Kong abandons the connection at an exit, but may keep it open until it collects garbage. The watchdog, which closes
// what remains, does not run during the test.
func TestAConnectionIsClosedWithItsExit(t *testing.T) {
	h := serve(t, deny, func(o *Options) { o.Budget = time.Hour })
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.Begin(id, getConsumer)
	k.Send(k.Answers[getConsumer])
	for _, part := range []string{"method", "arguments"} {
		if _, err := k.Receive(); err != nil {
			t.Fatalf("the %s of the exit: %v", part, err)
		}
	}
	require.NoError(t, k.Conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	if frame, err := k.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("%q, %v after the exit; want the end of the connection", frame, err)
	}
}

func TestAConnectionThatBreaksAfterAnExitIsLoggedUnlessKongHasClosedIt(t *testing.T) {
	h := serve(t, func(_ context.Context, e *Event) error {
		e.Call("kong.log.set_serialize_value", nil)
		e.Exit(429, nil, nil)
		return nil
	}, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	k.CallEvent(id, "access")
	for range 4 { // the methods and their arguments
		if _, err := k.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	k.Send(nil) // the answer to the call: the connection is open for it
	k.Write(binary.LittleEndian.AppendUint32(nil, maxFrame+1))
	h.log.Await(t, "longer than 67108864 bytes")
}

func TestThePanicOfACallEndsItsConnectionAndNothingElse(t *testing.T) {
	h := serve(t, greet, func(o *Options) {
		o.Start = func(Config) Instance { return Instance{Access: greet, Close: func() { panic("a bug") }} }
	})
	other := h.dial()
	id := other.StartInstance(1, "{}")
	k := h.dial()
	k.StartInstance(2, "{}")
	k.Call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: 2}}})
	if _, err := k.Receive(); err == nil {
		t.Error("a call that panicked was answered")
	}
	if line := h.log.Await(t, "panicked"); !strings.Contains(line, "a bug") || !strings.Contains(line, "conn_test.go") {
		t.Errorf("the line has no cause, or no stack: %s", line)
	}
	assert.EqualValues(t, 1, h.Counters().Panics, "panics counted")
	assert.NoError(t, other.Event(id), "another connection")
}
