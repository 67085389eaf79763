package wire

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/kong/wire/kongtest"
)

// serveLog serves instances whose log phase is log. Their access phase passes.
func serveLog(t testing.TB, log accessFunc) *harness {
	t.Helper()
	return serve(t, nil, func(o *Options) {
		o.Start = func(Config) Instance { return Instance{Access: pass, Log: log} }
	})
}

func TestEachPhaseHasItsOwnFunction(t *testing.T) {
	var phases []string
	note := func(phase string) accessFunc {
		return func(context.Context, *Event) error { phases = append(phases, phase); return nil }
	}
	access, log := note("access"), note("log")
	for _, in := range []Instance{{Access: access}, {Log: log}, {Access: access, Log: log}} {
		phases = append(phases, "|")
		h := serve(t, nil, func(o *Options) { o.Start = func(Config) Instance { return in } })
		k := h.dial()
		id := k.StartInstance(1, "{}")
		require.NoError(t, errors.Join(k.Event(id), k.LogEvent(id)))
	}
	assert.Equal(t, []string{"|", "access", "|", "log", "|", "access", "log"}, phases, "phases")
}

func TestTheLogPhaseReadsTheResponse(t *testing.T) {
	questions := []Question{
		NewQuestion("kong.response.get_status", ""), NewQuestion("kong.response.get_source", ""),
		NewQuestion("kong.response.get_header", "x-upstream"), NewQuestion("kong.ctx.shared.get", "nothing"),
		NewQuestion("kong.log.serialize", ""),
	}
	var status int
	var source, header string
	shared := Value{Kind: OtherValue}
	var entry []byte
	h := serveLog(t, func(_ context.Context, e *Event) error {
		return e.Ask(questions, func(i int, answer []byte) (err error) {
			switch i {
			case 0:
				status, err = DecodeInt(answer)
			case 1:
				source, err = DecodeString(answer, nil)
			case 2:
				header, err = DecodeString(answer, nil)
			case 3:
				shared, err = DecodeValue(answer)
			case 4:
				entry, err = DecodeBytes(answer)
				entry = slices.Clone(entry)
			}
			return err
		})
	})
	k := h.dial()
	k.Answers = kongtest.AnswersOf(t, "log-chunked")
	writes := h.writes()
	require.NoError(t, k.LogEvent(k.StartInstance(1, "{}")))
	if status != 200 || source != "service" || header != "yes" || shared != (Value{}) {
		t.Errorf("status %d, source %q, header %q, shared %v", status, source, header, shared)
	}
	assert.True(t, len(entry) >= 1000 && entry[0] == '{' && entry[len(entry)-1] == '}', "log entry %q", entry)
	assert.EqualValues(t, 3, h.writes()-writes, "writes") // the start of the instance, the questions, the end
}

// failures are the ways in which the log phase of an instance can fail.
var failures = map[string]accessFunc{
	"an error": func(context.Context, *Event) error { return errors.New("a bug") },
	"a panic":  func(context.Context, *Event) error { panic("a bug") },
	"a panic after a call": func(_ context.Context, e *Event) error {
		e.SetShared("key", "text")
		panic("a bug")
	},
	"a panic in an answer": func(_ context.Context, e *Event) error {
		return e.Ask([]Question{NewQuestion(getConsumer, ""), NewQuestion(getConsumer, "")},
			func(int, []byte) error { panic("a bug") })
	},
	"headers": func(_ context.Context, e *Event) error {
		e.SetHeaders([]Header{{Name: "X-Late"}})
		return nil
	},
	"an exit": func(_ context.Context, e *Event) error {
		e.Exit(429, nil, nil)
		return nil
	},
}

func TestAFailureInTheLogPhaseIsCountedAndKeepsTheConnection(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			fails, faults := true, 0
			h := serve(t, nil, func(o *Options) {
				o.Start = func(Config) Instance {
					return Instance{
						Log: func(ctx context.Context, e *Event) error {
							if !fails {
								return nil
							}
							return fail(ctx, e)
						},
						Access: greet, Fault: func(*Event) { faults++ },
					}
				}
			})
			k := h.dial()
			id := k.StartInstance(1, "{}")
			if err := k.LogEvent(id); err != nil || k.Exit != nil || k.Headers != nil {
				t.Errorf("%v, exit %v, headers %v; want the end of the event", err, k.Exit, k.Headers)
			}
			if c := h.Counters(); c.Failures+c.Panics != 1 || faults != 0 {
				t.Errorf("%d failures, %d panics, %d calls of Fault; want one of the former", c.Failures, c.Panics, faults)
			}
			fails = false
			if err := errors.Join(k.LogEvent(id), k.Event(id)); err != nil || k.Headers["X-Consumer"] != alice {
				t.Errorf("the next events on the connection: %v, headers %v", err, k.Headers)
			}
		})
	}
}

func TestSharedTextsLeaveWithTheHeadersAndBeforeAnExit(t *testing.T) {
	exits := false
	h := serve(t, func(_ context.Context, e *Event) error {
		e.SetShared("id", "r-1")
		e.SetHeaders([]Header{{Name: "X-A", Value: []byte("1")}})
		if exits {
			e.Exit(429, nil, nil)
		}
		return nil
	}, nil)
	k := h.dial()
	id := k.StartInstance(1, "{}")
	writes, asked := h.writes(), h.Counters().Questions
	if err := k.Event(id); err != nil || k.Headers["X-A"] != "1" ||
		!slices.Equal(k.Questions, []string{"kong.ctx.shared.set=id"}) {
		t.Errorf("%v, questions %q, headers %v", err, k.Questions, k.Headers)
	}
	if writes, asked := h.writes()-writes, h.Counters().Questions-asked; writes != 1 || asked != 1 {
		t.Errorf("%d writes and %d questions, want one each", writes, asked)
	}
	if exits = true; k.Event(id) != nil || k.Exit.GetStatus() != 429 || len(k.Questions) != 1 {
		t.Errorf("exit %v, questions %q", k.Exit, k.Questions)
	}
}

func TestASharedTextIsEncodedAsTheGeneratedCodeDoes(t *testing.T) {
	for _, text := range []string{"", "v-1", string(make([]byte, 300))} {
		want := kongtest.Encode(t, &pb.KV{K: "rec_string", V: structpb.NewStringValue(text)})
		got := appendSetShared(nil, "rec_string", text)
		if want := appendFrame(appendFrame(nil, []byte("kong.ctx.shared.set")), want); !slices.Equal(got, want) {
			t.Errorf("%d bytes of text:\n got %x\nwant %x", len(text), got, want)
		}
	}
}

func TestTwoServersOfOneProcessAreIndependent(t *testing.T) {
	limiting := serve(t, greet, func(o *Options) { o.Name = "limiting" })
	settling := serveLog(t, func(context.Context, *Event) error { return errors.New("a bug") })
	first, second := limiting.dial(), settling.dial()
	a, b := first.StartInstance(1, "{}"), second.StartInstance(1, "{}")
	if err := errors.Join(second.LogEvent(b), first.Event(a)); err != nil || first.Headers["X-Consumer"] != alice {
		t.Errorf("%v, headers %v", err, first.Headers)
	}
	limits, settles := limiting.Counters(), settling.Counters()
	if limits.Events != 1 || limits.Failures != 0 || settles.Events != 1 || settles.Failures != 1 {
		t.Errorf("counters %+v and %+v", limits, settles)
	}
	require.NoError(t, settling.stop())
	if err := first.Event(a); err != nil || first.Headers["X-Consumer"] != alice {
		t.Errorf("after the end of the other server: %v, headers %v", err, first.Headers)
	}
}

func TestAValueIsDecodedAsTheGeneratedCodeDoes(t *testing.T) {
	for _, c := range []struct {
		value *structpb.Value
		want  Value
	}{
		{structpb.NewNullValue(), Value{}},
		{structpb.NewStringValue(""), Value{Kind: TextValue}},
		{structpb.NewStringValue("NULL_VALUE"), Value{Kind: TextValue, Text: "NULL_VALUE"}},
		{structpb.NewNumberValue(-42.5), Value{Kind: NumberValue, Number: -42.5}},
		{structpb.NewNumberValue(math.Inf(1)), Value{Kind: NumberValue, Number: math.Inf(1)}},
		{structpb.NewBoolValue(true), Value{Kind: OtherValue}},
		{structpb.NewStructValue(&structpb.Struct{}), Value{Kind: OtherValue}},
		{structpb.NewListValue(&structpb.ListValue{}), Value{Kind: OtherValue}},
	} {
		if got, err := DecodeValue(kongtest.Encode(t, c.value)); err != nil || got != c.want {
			t.Errorf("%v: %+v, %v; want %+v", c.value, got, err, c.want)
		}
	}
	for _, broken := range []string{"\x11\x00", "\x1a\x05no", "\xff", "\x12"} {
		if got, err := DecodeValue([]byte(broken)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: %+v, %v; want ErrMalformed", broken, got, err)
		}
	}
}

func FuzzDecodeValue(f *testing.F) {
	for _, line := range kongtest.LogTranscript(f) {
		f.Add(line.Frame)
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		var want structpb.Value
		if proto.Unmarshal(answer, &want) != nil {
			return // the generated code rejects more: text that is not UTF-8
		}
		got, err := DecodeValue(answer)
		if err != nil {
			t.Fatalf("%x: %v, but it is a value", answer, err)
		}
		assert.Equal(t, want.GetStringValue(), got.Text, "%x: text", answer)
		number := want.GetNumberValue()
		if got.Number != number && !(math.IsNaN(got.Number) && math.IsNaN(number)) {
			t.Errorf("%x: number %v, want %v", answer, got.Number, number)
		}
	})
}

func TestHeadersAreTextsUnlessTheyCameMoreThanOnce(t *testing.T) {
	answer := kongtest.AnswersOf(t, "log-chunked")["kong.response.get_headers=100"]
	headers := map[string]Value{}
	require.NoError(t, DecodeHeaders(answer, func(name string, v Value) { headers[name] = v }))
	if headers["x-upstream"] != (Value{Kind: TextValue, Text: "yes"}) || headers["x-twice"] != (Value{Kind: OtherValue}) {
		t.Errorf("read %+v", headers)
	}
	for cut := range answer {
		visited := 0
		err := DecodeHeaders(answer[:cut], func(string, Value) { visited++ })
		require.True(t, err != nil || visited < len(headers), "all headers were read of %d bytes of %d", cut, len(answer))
	}
}
