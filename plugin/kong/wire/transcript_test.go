package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

func TestRecordedCallsOfKongAreAnswered(t *testing.T) {
	h := serve(t, pass, nil)
	k := h.dial()
	calls := 0
	for _, line := range kongtest.Transcript(t) {
		if line.Label != "RpcCall" {
			continue
		}
		var m pb.RpcCall
		require.NoError(t, proto.Unmarshal(line.Frame, &m))
		k.Sequence = m.Sequence
		k.Send(line.Frame)
		if m.GetCmdHandleEvent() != nil {
			if end, err := k.Receive(); err != nil || len(end) != 0 {
				t.Fatalf("line %d: %q, %v; want the end of the event", line.N, end, err)
			}
		}
		got, err := k.Return()
		require.NoError(t, err, "line %d", line.N)
		var id int32
		switch {
		case m.GetCmdStartInstance() != nil:
			id = seqOf(t, m.GetCmdStartInstance().Config)
		case m.GetCmdCloseInstance() != nil:
			id = m.GetCmdCloseInstance().InstanceId
		}
		assert.Equal(t, id, got.GetInstanceStatus().GetInstanceId(), "line %d: instance", line.N)
		calls++
	}
	assert.True(t, calls >= 20, "the transcript has only %d calls", calls)
}

func seqOf(t *testing.T, config []byte) int32 {
	t.Helper()
	_, digits, ok := bytes.Cut(config, []byte(`"__seq__":`))
	require.True(t, ok, "no __seq__ in %s", config)
	var n int32
	for _, c := range digits {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int32(c-'0')
	}
	return n
}

func TestAnswersEqualTheRecordedMessages(t *testing.T) {
	header := func(name, value string) Header { return Header{Name: name, Value: []byte(value)} }
	headers := []Header{
		header("X-RateLimit-Limit", "100"),
		header("X-RateLimit-Remaining", "99"),
		header("X-RateLimit-Reset", "1"),
	}
	exitHeaders := []Header{header("Content-Type", "application/problem+json"), header("Retry-After", "7")}
	exit := appendExit(nil, 429, exitHeaders, []byte(`{"title":"no"}`))
	frames := kongtest.Transcript(t)
	found := 0
	for i, line := range frames {
		switch string(line.Frame) {
		case "kong.response.set_headers":
			sameMessage(t, appendSetHeaders(nil, headers), line, frames[i+1], &structpb.Struct{}, &structpb.Struct{})
			found++
		case "kong.response.exit":
			sameMessage(t, exit, line, frames[i+1], &pb.ExitArgs{}, &pb.ExitArgs{})
			found++
		}
	}
	assert.True(t, found >= 3, "the transcript has only %d answers to compare", found)
}

// sameMessage compares two frames with the recorded ones: the method byte for byte, the arguments as messages of equal
// length, because the order of a map's entries is not defined.
func sameMessage(t *testing.T, got []byte, method, arguments kongtest.Recorded, ours, theirs proto.Message) {
	t.Helper()
	want := appendFrame(appendFrame(nil, method.Frame), arguments.Frame)
	start := 8 + len(method.Frame)
	if len(got) != len(want) || !bytes.Equal(got[:start], want[:start]) {
		t.Fatalf("line %d:\n got %x\nwant %x", method.N, got, want)
	}
	if err := errors.Join(proto.Unmarshal(got[start:], ours), proto.Unmarshal(arguments.Frame, theirs)); err != nil {
		t.Fatalf("line %d: %v", method.N, err)
	}
	assert.True(t, proto.Equal(ours, theirs), "line %d: %v, recorded %v", method.N, ours, theirs)
}

func FuzzDecodeCall(f *testing.F) {
	for _, line := range kongtest.Transcript(f) {
		if line.Label == "RpcCall" {
			f.Add(line.Frame)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		got, err := decodeCall(frame)
		var want pb.RpcCall
		if proto.Unmarshal(frame, &want) != nil {
			return // the generated code rejects more: text that is not UTF-8
		}
		if err != nil {
			t.Fatalf("%x: %v, but it is an RpcCall", frame, err)
		}
		assert.Equal(t, want.Sequence, got.sequence, "%x: sequence", frame)
		if event := want.GetCmdHandleEvent(); event != nil && got.command == cmdHandleEvent && len(frame) < 64 &&
			bytes.Count(frame, []byte{0xa2, 0x02}) == 1 {
			if got.instance != event.InstanceId || string(got.event) != event.EventName {
				t.Errorf("%x: event %q of %d, want %q of %d", frame, got.event, got.instance, event.EventName, event.InstanceId)
			}
		}
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte{}, 10)
	f.Add(appendFrame(appendFrame(nil, []byte("hello")), nil), 3)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, 3)
	f.Fuzz(func(t *testing.T, stream []byte, limit int) {
		frames := newFrameReader(bytes.NewReader(stream))
		for left := stream; ; {
			frame, err := frames.readFrame(limit)
			if err != nil && err != errAnswerTooLong {
				return
			}
			size := int(binary.LittleEndian.Uint32(left))
			if want := left[4 : 4+size]; err == nil && !bytes.Equal(frame, want) {
				t.Fatalf("frame %q, want %q", frame, want)
			} else if (err != nil) != (size > limit) {
				t.Fatalf("a frame of %d bytes with limit %d: %v", size, limit, err)
			}
			left = left[4+size:]
		}
	})
}
