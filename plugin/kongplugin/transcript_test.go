package kongplugin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
)

func TestKongsRecordedCallsAreAnswered(t *testing.T) {
	h := serve(t, plenty, nil)
	k := h.dial()
	calls := 0
	for _, line := range transcript(t) {
		if line.Label != "RpcCall" {
			continue
		}
		var m pb.RpcCall
		if err := proto.Unmarshal(line.Frame, &m); err != nil {
			t.Fatal(err)
		}
		k.sequence = m.Sequence
		k.send(line.Frame)
		if m.GetCmdHandleEvent() != nil {
			// The recorded configs are another plugin's: faulty to ours, so their events are passed at once.
			if end, err := k.receive(); err != nil || len(end) != 0 {
				t.Fatalf("line %d: %q, %v; want the end of the event", line.N, end, err)
			}
		}
		got, err := k.returned()
		if err != nil {
			t.Fatalf("line %d: %v", line.N, err)
		}
		var raw struct{ id int32 }
		switch {
		case m.GetCmdStartInstance() != nil:
			raw.id = seqOf(t, m.GetCmdStartInstance().Config)
		case m.GetCmdCloseInstance() != nil:
			raw.id = m.GetCmdCloseInstance().InstanceId
		}
		if got.GetInstanceStatus().GetInstanceId() != raw.id {
			t.Errorf("line %d: instance %d, want %d", line.N, got.GetInstanceStatus().GetInstanceId(), raw.id)
		}
		calls++
	}
	if calls < 20 {
		t.Errorf("the transcript has only %d calls", calls)
	}
}

func seqOf(t *testing.T, config []byte) int32 {
	t.Helper()
	_, rest, ok := bytes.Cut(config, []byte(`"__seq__":`))
	if !ok {
		t.Fatalf("no __seq__ in %s", config)
	}
	var n int32
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int32(c-'0')
	}
	return n
}

func TestOurQuestionsAreTheRecordedBytes(t *testing.T) {
	recordedArguments := map[string][]byte{}
	for _, line := range transcript(t) {
		if question, ok := strings.CutPrefix(line.Label, "args of "); ok {
			recordedArguments[question] = line.Frame
		}
	}
	ours := append(slices.Clone(questions), headerQuestions([]string{"X-User-Id", "No-Such-Header"})...)
	compared := 0
	for _, q := range ours {
		size := binary.LittleEndian.Uint32(q.frames)
		method, arguments := string(q.frames[4:4+size]), q.frames[8+size:]
		name := method
		if argument, err := decodeString(arguments, nil); err == nil && argument != "" {
			name += "=" + argument
		}
		if name == "kong.request.get_header=content-type" {
			continue // not recorded; the other headers are
		}
		want, ok := recordedArguments[name]
		if variable, of := strings.CutPrefix(name, "kong.nginx.get_var="); of && !ok {
			// A header's variable was not recorded: the question differs from a recorded one in its name alone.
			request := recordedArguments["kong.nginx.get_var=request"]
			want, ok = append([]byte{request[0], byte(len(variable))}, variable...), len(request) == 2+len("request")
		}
		if !ok || !bytes.Equal(arguments, want) {
			t.Errorf("%s: arguments %x, recorded %x (%t)", name, arguments, want, ok)
		}
		compared++
	}
	if compared != 9 {
		t.Errorf("compared %d questions, want 9", compared)
	}
}

func TestOurAnswersAreTheRecordedMessages(t *testing.T) {
	header := func(name, value string) response.Header { return response.Header{Name: name, Value: []byte(value)} }
	headers := []response.Header{header("X-RateLimit-Limit", "100"), header("X-RateLimit-Remaining", "99"), header("X-RateLimit-Reset", "1")}
	exit := &response.Response{
		Status: 429, Body: []byte(`{"title":"no"}`),
		Headers: []response.Header{header("Content-Type", "application/problem+json"), header("Retry-After", "7")},
	}
	frames := transcript(t)
	found := 0
	for i, line := range frames {
		switch string(line.Frame) {
		case "kong.response.set_headers":
			sameMessage(t, appendSetHeaders(nil, headers), line, frames[i+1], &structpb.Struct{}, &structpb.Struct{})
			found++
		case "kong.response.exit":
			sameMessage(t, appendExit(nil, exit), line, frames[i+1], &pb.ExitArgs{}, &pb.ExitArgs{})
			found++
		}
	}
	if found < 3 {
		t.Errorf("the transcript has only %d answers to compare", found)
	}
}

// sameMessage compares two frames with the recorded ones: the method byte for byte, the arguments as messages of equal
// length, because the order of a map's entries is not ours to choose.
func sameMessage(t *testing.T, got []byte, method, arguments recorded, ours, theirs proto.Message) {
	t.Helper()
	want := appendFrame(appendFrame(nil, method.Frame), arguments.Frame)
	start := 8 + len(method.Frame)
	if len(got) != len(want) || !bytes.Equal(got[:start], want[:start]) {
		t.Fatalf("line %d:\n got %x\nwant %x", method.N, got, want)
	}
	if err := errors.Join(proto.Unmarshal(got[start:], ours), proto.Unmarshal(arguments.Frame, theirs)); err != nil {
		t.Fatalf("line %d: %v", method.N, err)
	}
	if !proto.Equal(ours, theirs) {
		t.Errorf("line %d: %v, recorded %v", method.N, ours, theirs)
	}
}

func TestRecordedAnswersIdentifyTheRequest(t *testing.T) {
	const config = `{"tenant_from":["consumer.tag.org"],"user_from":["jwt.sub","header.X-User-Id"],"tier_from":["jwt.tier","consumer.tag.tier"],"trusted_headers":["x-user-id"],
		"tiers":[{"name":"essentials"},{"name":"enterprise","limits":[{"name":"u","scope":"user+endpoint","limit":9,"window_size":1},{"name":"p","scope":"tenant+endpoint","endpoint":"GET /authed/records/{id}","limit":9,"window_size":1}]}],
		"anonymous":{"limits":[{"name":"ip","scope":"ip","limit":9,"window_size":1}]}}`
	tenant := policy.Key{Namespace: "default", Group: policy.ByTenant, GroupID: "acme"}
	user := tenant
	user.Policy, user.Kind, user.Subject = "u", policy.KindUser, "u_42"
	authed, jwt, endpoint := user, user, tenant
	authed.Endpoint, jwt.Endpoint = "authed", "jwt"
	endpoint.Policy, endpoint.Endpoint = "p", "GET /authed/records/{id}"
	stranger := policy.Key{Namespace: "default", Policy: "ip", Group: policy.ByIP, GroupID: "127.0.0.1"}
	for name, want := range map[string][]policy.Key{
		"key-auth":           {authed, endpoint},
		"jwt":                {jwt},
		"key-auth-anonymous": {stranger},
		"no-auth":            {stranger},
	} {
		var got []policy.Key
		h := serve(t, func(bounds []policy.Bound, statuses []decision.Status) error {
			for _, b := range bounds {
				got = append(got, b.Key)
			}
			return plenty(bounds, statuses)
		}, nil)
		k := h.dial()
		k.answers = answersOf(t, name)
		if err := k.event(k.startInstance(1, config)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

func FuzzDecodeCall(f *testing.F) {
	for _, line := range transcript(f) {
		if line.Label == "RpcCall" {
			f.Add(line.Frame)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		got, err := decodeCall(frame)
		var want pb.RpcCall
		if proto.Unmarshal(frame, &want) != nil {
			return // the generated code refuses more: text that is not UTF-8
		}
		if err != nil {
			t.Fatalf("%x: %v, but it is an RpcCall", frame, err)
		}
		if got.sequence != want.Sequence {
			t.Errorf("%x: sequence %d, want %d", frame, got.sequence, want.Sequence)
		}
		if event := want.GetCmdHandleEvent(); event != nil && got.command == cmdHandleEvent && len(frame) < 64 && bytes.Count(frame, []byte{0xa2, 0x02}) == 1 {
			if got.instance != event.InstanceId || string(got.event) != event.EventName {
				t.Errorf("%x: event %q of %d, want %q of %d", frame, got.event, got.instance, event.EventName, event.InstanceId)
			}
		}
	})
}

func FuzzDecodeAnswers(f *testing.F) {
	for _, line := range transcript(f) {
		if strings.HasPrefix(line.Label, "answer of ") {
			f.Add(line.Frame)
		}
	}
	all := append(slices.Clone(questions), headerQuestions([]string{"A"})...)
	known := newNames()
	f.Fuzz(func(t *testing.T, answer []byte) {
		req := identity.Request{Headers: make([]string, 1)}
		for _, q := range all {
			if err := q.decode(answer, known, &req); err != nil && err != errMalformed {
				t.Errorf("%x: %v", answer, err)
			}
		}
		var want pb.Consumer
		if proto.Unmarshal(answer, &want) == nil && (req.Consumer.ID != want.Id || req.Consumer.Username != want.Username || req.Consumer.CustomID != want.CustomId || !slices.Equal(req.Consumer.Tags, want.Tags)) {
			t.Errorf("%x: consumer %+v, want %v", answer, req.Consumer, &want)
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{}, 10)
	f.Add(appendFrame(appendFrame(nil, []byte("hello")), nil), 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, 3)
	f.Fuzz(func(t *testing.T, stream []byte, limit int) {
		frames := newFrames(bytes.NewReader(stream))
		for rest := stream; ; {
			frame, err := frames.read(limit)
			if err != nil && err != errAnswerTooLong {
				return
			}
			size := int(binary.LittleEndian.Uint32(rest))
			if want := rest[4 : 4+size]; err == nil && !bytes.Equal(frame, want) {
				t.Fatalf("frame %q, want %q", frame, want)
			} else if (err != nil) != (size > limit) {
				t.Fatalf("a frame of %d bytes with limit %d: %v", size, limit, err)
			}
			rest = rest[4+size:]
		}
	})
}
