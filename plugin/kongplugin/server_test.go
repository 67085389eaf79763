package kongplugin

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const byConsumer = `{"observe_endpoint":false,"tenant_from":["consumer.custom_id"],"tier_from":["consumer.tag.tier"],"tiers":[
	{"name":"essentials","limits":[{"name":"burst","scope":"tenant","limit":5,"window_size":1}]},
	{"name":"enterprise","limits":[{"name":"burst","scope":"tenant","limit":50,"window_size":1}]}]}`

func TestAConsumerConfigAsksOnlyForTheConsumerInOneWriteAndAnswersInOne(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	id := k.startInstance(17, byConsumer)
	before := h.writes()
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if want := []string{"kong.client.get_consumer"}; !slices.Equal(k.asked, want) {
		t.Errorf("asked %q, want %q", k.asked, want)
	}
	if got := h.writes() - before; got != 2 {
		t.Errorf("%d writes, want 2: the question; headers, end and return together", got)
	}
	if k.headers["X-RateLimit-Limit"] != "50" || k.headers["X-RateLimit-Remaining"] != "7" {
		t.Errorf("headers %v, want those of tier enterprise", k.headers)
	}
}

func TestAllQuestionsOfARequestLeaveInOneWrite(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "jwt")
	id := k.startInstance(1, `{"tenant_from":["consumer.custom_id"],"user_from":["jwt.sub","header.X-User-Id"],"trusted_headers":["X-User-Id"],"tiers":[
		{"name":"a","limits":[{"name":"u","scope":"user+endpoint","endpoint":"GET /jwt/*","limit":5,"window_size":1},{"name":"c","scope":"credential","limit":5,"window_size":1}]}]}`)
	before := h.writes()
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	want := []string{"kong.client.get_consumer", "kong.client.get_credential", "kong.nginx.get_var=request", "kong.router.get_route", "kong.ctx.shared.get=authenticated_jwt_token", "kong.nginx.get_var=http_x_user_id"}
	if !slices.Equal(k.asked, want) {
		t.Errorf("asked %q, want %q", k.asked, want)
	}
	if got := h.writes() - before; got != 2 {
		t.Errorf("%d writes for %d questions, want 2", got, len(k.asked))
	}
}

func TestAConfigWithoutLimitsAsksNothing(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	id := k.startInstance(1, `{"observe_endpoint":false,"tiers":[{"name":"internal"}]}`)
	before := h.writes()
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if len(k.asked) != 0 || k.headers != nil || h.writes()-before != 1 {
		t.Errorf("asked %q, headers %v, %d writes; want nothing but the end", k.asked, k.headers, h.writes()-before)
	}
}

func TestARouteScopedInstanceAsksForItsRouteOnce(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	config := `{"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant+endpoint","limit":5,"window_size":1}]}]`
	scoped, global := k.startInstance(1, config+`,"route_id":"r1"}`), k.startInstance(2, config+`}`)
	for i, want := range []struct {
		id  int32
		ask bool
	}{{scoped, true}, {scoped, false}, {scoped, false}, {global, true}, {global, true}} {
		if err := k.event(want.id); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(k.asked, "kong.router.get_route"); got != want.ask {
			t.Errorf("event %d asked %q: for the route %t, want %t", i, k.asked, got, want.ask)
		}
	}
}

func TestTheAddressIsAskedOnlyWhenTheTenantIsMissing(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.answers = answersOf(t, "no-auth")
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if want := []string{"kong.client.get_consumer", "kong.client.get_forwarded_ip"}; !slices.Equal(k.asked, want) {
		t.Errorf("asked %q, want %q", k.asked, want)
	}
}

func TestARefusalExitsAndTheDroppedConnectionIsNotLogged(t *testing.T) {
	h := serve(t, nothing, nil)
	k := h.dial()
	k.answers = answersOf(t, "key-auth")
	id := k.startInstance(1, byConsumer)
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if k.exit == nil || k.exit.Status != 429 || k.exit.Headers.Fields["Retry-After"].GetStringValue() != "3" {
		t.Fatalf("exit %v, want 429 with Retry-After 3", k.exit)
	}
	if err := h.stop(); err != nil {
		t.Fatal(err)
	}
	close(h.log.ch)
	for line := range h.log.ch {
		if strings.Contains(line, "closed") {
			t.Errorf("logged %s", line)
		}
	}
}

func TestAnUnknownInstanceClosesTheConnectionAndNothingElseDoes(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	if err := k.event(99); err == nil {
		t.Error("an event of an unknown instance was answered; Kong would not start it anew")
	}
	k = h.dial()
	id := k.startInstance(1, byConsumer)
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: id, EventName: "rewrite"}}})
	if end, err := k.receive(); err != nil || len(end) != 0 {
		t.Errorf("an unknown event was answered %q, %v; want the end of the event", end, err)
	}
	if _, err := k.returned(); err != nil {
		t.Error(err)
	}
	k.call(&pb.RpcCall{}) // a call without a command
	if _, err := k.returned(); err != nil {
		t.Errorf("an unknown call: %v", err)
	}
	k.send([]byte{0xff, 0xff, 0xff})
	if _, err := k.receive(); err == nil {
		t.Error("an unparseable frame did not close the connection")
	}
	h.log.await(t, "cannot parse a call")
}

func TestAFrameOver64MiBClosesTheConnectionWithALogLine(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	if _, err := k.net.Write(binary.LittleEndian.AppendUint32(nil, maxFrame+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := k.receive(); err == nil {
		t.Error("the connection was not closed")
	}
	h.log.await(t, "longer than 67108864 bytes")
}

func TestAnAnswerThatIsTooLongIsReadPastAndTheInternalFailModeAnswers(t *testing.T) {
	for _, mode := range []string{"open", "closed"} {
		h := serve(t, plenty, nil)
		k := h.dial()
		id := k.startInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_internal_error":"`+mode+`"}`)
		k.answers["kong.client.get_consumer"] = encode(t, &pb.Consumer{CustomId: strings.Repeat("x", maxAnswer)})
		if err := k.event(id); err != nil {
			t.Fatal(err)
		}
		if refused := k.exit != nil; refused != (mode == "closed") || (refused && k.exit.Status != 503) {
			t.Errorf("%s: exit %v", mode, k.exit)
		}
		if mode == "closed" {
			k = h.dial()
		}
		k.answers = answersOf(t, "key-auth")
		if err := k.event(id); err != nil || k.headers["X-RateLimit-Limit"] != "50" {
			t.Errorf("%s: the next event: %v, headers %v", mode, err, k.headers)
		}
	}
}

func TestLongAnswersWithinTheBoundAreDecided(t *testing.T) {
	var owner string
	h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
		owner = bounds[0].Key.GroupID
		return plenty(bounds, statuses)
	}, nil)
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.answers["kong.client.get_consumer"] = encode(t, &pb.Consumer{CustomId: strings.Repeat("x", 1<<20), Tags: slices.Repeat([]string{"tier:enterprise"}, 10_000)})
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if k.headers["X-RateLimit-Limit"] != "50" || !strings.HasPrefix(owner, "sha256:") {
		t.Errorf("headers %v, owner %.20q; want the tier and a hashed tenant", k.headers, owner)
	}
}

func TestAnIdentityThatIsNotUTF8IsCountedAsItIs(t *testing.T) {
	var owner string
	h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
		owner = bounds[0].Key.GroupID
		return plenty(bounds, statuses)
	}, nil)
	k := h.dial()
	id := k.startInstance(1, `{"tenant_from":["header.X-Org"],"trusted_headers":["x-org"],"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":5,"window_size":1}]}]}`)
	k.answers["kong.nginx.get_var=http_x_org"] = []byte("\x0a\x04\xff\x00:}")
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if owner != "\xff\x00:}" {
		t.Errorf("owner %q", owner)
	}
}

func TestATrustedHeaderWithMoreThanOneValueIsDenied(t *testing.T) {
	const limits = `"tiers":[{"name":"a","limits":[{"name":"l","scope":"tenant","limit":5,"window_size":1}]}]}`
	for name, test := range map[string]struct{ config, variable, header string }{
		"the tenant's": {`{"tenant_from":["consumer.id","header.x-org"],"trusted_headers":["X-Org"],` + limits, "http_x_org", "X-Org"},
		"the user's":   {`{"tenant_from":["header.X-Org"],"user_from":["header.X-User_Id"],"trusted_headers":["X-Org","X-User_Id"],"tiers":[{"name":"a","limits":[{"name":"l","scope":"user","limit":5,"window_size":1}]}]}`, "http_x_user_id", "X-User_id"},
		"the tier's":   {`{"tier_from":["header.X-Tier"],"trusted_headers":["X-Tier"],"tiers":[{"name":"b"},` + strings.TrimPrefix(limits, `"tiers":[`), "http_x_tier", "X-Tier"},
		"the cost's":   {`{"cost_header":"X-Cost","trusted_headers":["X-Cost"],` + limits, "http_x_cost", "X-Cost"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, value := range []string{"evil, real", "a,b", ", 7", "7, "} {
				takes := 0
				h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
					takes++
					return plenty(bounds, statuses)
				}, nil)
				k := h.dial()
				k.answers = answersOf(t, "key-auth")
				for _, variable := range []string{"http_x_org", "http_x_user_id", "http_x_tier", "http_x_cost"} {
					k.answers["kong.nginx.get_var="+variable] = encode(t, &pb.String{V: "7"})
				}
				k.answers["kong.nginx.get_var="+test.variable] = encode(t, &pb.String{V: value})
				if err := k.event(k.startInstance(1, test.config)); err != nil {
					t.Fatal(err)
				}
				if takes != 0 || k.exit == nil || k.exit.Status != 400 || !strings.Contains(string(k.exit.Body), "The header "+test.header+" must be sent once") {
					t.Errorf("%q: %d takes, exit %v; want 400 that names %s", value, takes, k.exit, test.header)
				}
			}
		})
	}
}

func TestAPanicIsAnsweredByTheInternalFailModeAndLoggedOnce(t *testing.T) {
	h := serve(t, func([]policy.Bound, []decision.Status) error { panic("a bug") }, nil)
	for _, mode := range []string{"open", "closed"} {
		k := h.dial()
		k.answers = answersOf(t, "key-auth")
		id := k.startInstance(1, strings.TrimSuffix(byConsumer, "}")+`,"on_internal_error":"`+mode+`"}`)
		for range 3 {
			if err := k.event(id); err != nil {
				t.Fatal(err)
			}
			if (k.exit != nil) != (mode == "closed") {
				t.Fatalf("%s: exit %v", mode, k.exit)
			}
			if k.exit != nil {
				k = h.dial()
				k.answers = answersOf(t, "key-auth")
			}
		}
	}
	if got := h.Counters().Panics.Load(); got != 6 {
		t.Errorf("%d panics counted, want 6", got)
	}
	if line := h.log.await(t, "panicked"); !strings.Contains(line, "server_test.go") {
		t.Errorf("the log line has no stack: %s", line)
	}
	for len(h.log.ch) > 0 {
		if line := <-h.log.ch; strings.Contains(line, "panicked") {
			t.Errorf("logged again: %s", line)
		}
	}
}

func TestAnExceededBudgetIsAnsweredAndTheLateAnswerIsReadPast(t *testing.T) {
	h := serve(t, plenty, func(o *Options) { o.Budget = 20 * time.Millisecond })
	k := h.dial()
	id := k.startInstance(1, byConsumer)
	k.call(&pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: id, EventName: "access"}}})
	for _, want := range []string{"kong.client.get_consumer", "", ""} { // question, arguments, and then the end unasked
		if frame, err := k.receive(); err != nil || string(frame) != want {
			t.Fatalf("received %q, %v; want %q", frame, err, want)
		}
	}
	if _, err := k.returned(); err != nil {
		t.Fatal(err)
	}
	k.send(answersOf(t, "no-auth")["kong.client.get_consumer"]) // late
	k.answers = answersOf(t, "key-auth")
	if err := k.event(id); err != nil {
		t.Fatal(err)
	}
	if k.headers["X-RateLimit-Limit"] != "50" {
		t.Errorf("headers %v: the late answer was taken for the next event's", k.headers)
	}
	if got := h.Counters().Undecided.Load(); got != 1 {
		t.Errorf("%d undecided, want 1", got)
	}
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
	f := newFrames(reader)
	if frame, err := f.read(maxFrame); err != nil || string(frame) != "hello" {
		t.Errorf("%q, %v", frame, err)
	}
	if frame, err := f.read(maxFrame); err != nil || len(frame) != bufferSize+5 {
		t.Errorf("%d bytes, %v", len(frame), err)
	}
	if _, err := f.read(maxFrame); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}
