package kongplugin

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// These are tests of peers that do not do what Kong does, and of Kong when it is in trouble.

// begin begins an event, and reads the question for the consumer.
func (k *kong) begin(id int32) {
	k.t.Helper()
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: id, EventName: "access"}}})
	for _, want := range []string{"kong.client.get_consumer", ""} {
		if frame, err := k.receive(); err != nil || string(frame) != want {
			k.t.Fatalf("received %q, %v; want %q", frame, err, want)
		}
	}
}

// write sends bytes that are no whole frame.
func (k *kong) write(part []byte) {
	k.t.Helper()
	if _, err := k.net.Write(part); err != nil {
		k.t.Fatal(err)
	}
}

func TestHalfACallThatGoesNoFurtherClosesTheConnectionAndAnIdleOneStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := servePipes(t, plenty, asItIs)
		idle, half := connect(), connect()
		half.write(appendFrame(nil, make([]byte, 100))[:50])
		before := time.Now()
		if err := half.net.SetReadDeadline(before.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := half.r.ReadByte(); err == nil || isTimeout(err) {
			t.Errorf("%v; want the connection closed", err)
		}
		if waited := time.Since(before); waited < frameTime || waited > frameTime+time.Second {
			t.Errorf("closed after %v, want %v", waited, frameTime)
		}
		h.log.await(t, "a frame began and did not end")
		time.Sleep(time.Hour) // of the test's own clock
		if id := idle.startInstance(1, byConsumer); id != 1 {
			t.Errorf("an idle connection answers %d", id)
		}
	})
}

func TestACallThatComesInPartsIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, connect := servePipes(t, plenty, asItIs)
		k := connect()
		id := k.startInstance(1, byConsumer)
		for range 3 {
			k.sequence++
			call := appendFrame(nil, appendVarint(nil, 1, uint64(k.sequence)))
			for _, part := range [][]byte{call[:2], call[2:5], call[5:]} {
				k.write(part)
				time.Sleep(frameTime - time.Second) // of the test's own clock
			}
			if _, err := k.returned(); err != nil {
				t.Fatal(err)
			}
		}
		k.answers = answersOf(t, "key-auth")
		if err := k.event(id); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
			t.Errorf("%v, headers %v", err, k.headers)
		}
	})
}

func TestAnAnswerThatIsTooLongAndLateIsReadPast(t *testing.T) {
	h := serve(t, plenty, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.begin(id)
	answer := appendFrame(nil, make([]byte, maxAnswer+1))
	k.write(answer[:100])
	if end, err := k.receive(); err != nil || len(end) != 0 { // unasked: the budget is over
		t.Fatalf("received %q, %v; want the end of the event", end, err)
	}
	if _, err := k.returned(); err != nil {
		t.Fatal(err)
	}
	k.write(answer[100:])
	k.answers = answersOf(t, "key-auth")
	if err := k.event(id); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("the next event: %v, headers %v", err, k.headers)
	}
}

func TestAnEventWithoutAnAnswerInTimeIsToldWithItsBudget(t *testing.T) {
	h := serve(t, plenty, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	k.begin(k.startInstance(1, byConsumer))
	if line := h.log.await(t, "could not be decided"); !strings.Contains(line, "time budget of 20ms") {
		t.Errorf("the line does not say what was exceeded: %s", line)
	}
}

func TestAConnectionThatBreaksDuringAnEventIsToldUnlessKongHasClosedIt(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.begin(id)
	if err := k.net.Close(); err != nil {
		t.Fatal(err)
	}
	k = h.dial()
	k.begin(id)
	k.write(binary.LittleEndian.AppendUint32(nil, maxFrame+1))
	if _, err := k.receive(); err == nil {
		t.Error("the connection was not closed")
	}
	if line := h.log.await(t, "connection closed"); !strings.Contains(line, "longer than 67108864 bytes") {
		t.Errorf("logged %s, want the one that Kong did not close alone", line)
	}
}

func TestAConnectionThatBreaksAfterARefusalIsToldUnlessKongHasClosedIt(t *testing.T) {
	h := serve(t, nothing, nil)
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.answers = answersOf(t, "key-auth")
	k.begin(id)
	k.send(k.answers["kong.client.get_consumer"])
	for range 2 { // that ends the request, and why
		if _, err := k.receive(); err != nil {
			t.Fatal(err)
		}
	}
	k.write(binary.LittleEndian.AppendUint32(nil, maxFrame+1))
	h.log.await(t, "longer than 67108864 bytes")
}

func TestThePanicOfACallEndsItsConnectionAndNothingElse(t *testing.T) {
	h := serve(t, plenty, func(o *Options) {
		build := o.Build
		o.Build = func(config schema.Config, snapshot *policy.Plan) (*admit.Path, func(), error) {
			path, _, err := build(config, snapshot)
			return path, func() { panic("a bug") }, err
		}
	})
	other := h.dial()
	other.answers = answersOf(t, "key-auth")
	id := other.startInstance(1, byConsumer)
	k := h.dial()
	k.startRaw([]byte(withSeq(2, "plugin-2", byConsumer)))
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: 2}}})
	if _, err := k.receive(); err == nil {
		t.Error("a call that panicked was answered")
	}
	if line := h.log.await(t, "panicked"); !strings.Contains(line, "a bug") || !strings.Contains(line, "peer_test.go") {
		t.Errorf("the line has no cause, or no stack: %s", line)
	}
	if got := h.Counters().Panics.Load(); got != 1 {
		t.Errorf("%d panics counted, want 1", got)
	}
	if err := other.event(id); err != nil {
		t.Errorf("another connection: %v", err)
	}
}

func TestARouteThatKongDidNotNameIsAskedForAgain(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	named := k.answers["kong.router.get_route"]
	id := k.startInstance(1, `{"route_id":"r1","tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant+endpoint","limit":5,"window_size":1}]}]}`)
	for i, c := range []struct {
		answer []byte
		asked  bool
	}{{nil, true}, {named, true}, {named, false}} {
		k.answers["kong.router.get_route"] = c.answer
		if err := k.event(id); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(k.asked, "kong.router.get_route"); got != c.asked {
			t.Errorf("event %d asked for the route: %t, want %t", i, got, c.asked)
		}
	}
}

func TestAStatusOfAnUnknownInstanceIsToldAndCountedAsItsEventIs(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdGetInstanceStatus{CmdGetInstanceStatus: &pb.CmdGetInstanceStatus{InstanceId: 99}}})
	if _, err := k.receive(); err == nil {
		t.Error("it was answered; Kong would not start the instance anew")
	}
	h.log.await(t, "unknown instance")
	if got := h.Counters().UnknownInstances.Load(); got != 1 {
		t.Errorf("%d unknown instances counted, want 1", got)
	}
}
