package redis

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// encoded returns a reply of nils, integers, texts and arrays.
func encoded(elements ...any) []byte {
	reply := append(strconv.AppendInt([]byte{'*'}, int64(len(elements)), 10), "\r\n"...)
	for _, element := range elements {
		switch element := element.(type) {
		case nil:
			reply = append(reply, "$-1\r\n"...)
		case int64:
			reply = append(strconv.AppendInt(append(reply, ':'), element, 10), "\r\n"...)
		case string:
			reply = appendBulk(reply, element)
		case []any:
			reply = append(reply, encoded(element...)...)
		default:
			panic("an element of another type")
		}
	}
	return reply
}

// scriptReply returns the reply of the script to one request.
func scriptReply(elements ...any) []byte { return encoded(elements) }

// decoded returns the elements of a reply that is an array.
func decoded(e *elements) []any {
	list := make([]any, e.array())
	for i := range list {
		switch e.next() {
		case ':':
			list[i] = e.integer()
		case '*':
			list[i] = decoded(e)
		default:
			if text := e.text(); text != nil {
				list[i] = string(text)
			}
		}
	}
	return list
}

// evaluate runs a script by a transport, and returns the elements of its reply.
func evaluate(ctx context.Context, t transport, script *script, keys []string, args ...string) ([]any, error) {
	c := newCall(keys, args...)
	if err := t.Run(ctx, script, c); err != nil {
		return nil, err
	}
	e := elements{left: c.reply}
	list := decoded(&e)
	return list, e.end()
}

func TestAReplyEndsWithItsLastElement(t *testing.T) {
	for _, reply := range []string{
		"+OK\r\n", "-ERR no\r\n", ":-5\r\n", "$-1\r\n", "$0\r\n\r\n", "$4\r\n\r\n\r\n\r\n", "*-1\r\n", "*0\r\n",
		"*3\r\n$1\r\nx\r\n*2\r\n:1\r\n*0\r\n$-1\r\n",
	} {
		for i := range len(reply) {
			if n, err := replyLength([]byte(reply[:i])); n != 0 || err != nil {
				t.Errorf("%q has a reply of %d bytes (%v), want that more is to come", reply[:i], n, err)
			}
		}
		if n, err := replyLength([]byte(reply + ":7\r\n")); n != len(reply) || err != nil {
			t.Errorf("%q has a reply of %d bytes (%v), want %d", reply+":7\r\n", n, err, len(reply))
		}
	}
}

func TestWhatIsNoReplyIsAnError(t *testing.T) {
	for _, text := range []string{
		"\r\n", "?\r\n", "OK\n", "$x\r\n", "$\r\n", "$-2\r\n", "$1\r\nxyz", ":1x\r\n", ":\r\n", "*9999999999999999999\r\n",
		"$999999999999\r\n", "%1\r\n+a\r\n+b\r\n", ">2\r\n+invalidate\r\n*0\r\n",
	} {
		if n, err := replyLength([]byte(text)); err == nil {
			t.Errorf("%q has a reply of %d bytes, want an error", text, n)
		}
	}
}

func FuzzReply(f *testing.F) {
	now := int64(1_700_000_000_000_000)
	f.Add(scriptReply(nil, nil, now))
	value := string(slices.Repeat([]byte{2}, headSize+entrySize))
	f.Add(scriptReply(value, int64(1), now, []any{int64(1)}, nil, []any{int64(2)}))
	f.Add(scriptReply(nil, nil, now, nil, []any{int64(2), int64(1), now, now, int64(0), int64(1)}))
	f.Add(scriptReply([]any{int64(1), int64(-1)}))
	f.Add(encoded([]any{int64(1)}, []any{int64(2)}))
	f.Fuzz(func(t *testing.T, reply []byte) {
		n, err := replyLength(reply)
		if err != nil || n == 0 {
			n = 0
		}
		require.True(t, n <= len(reply) && n >= 0, "%d of %d bytes are a reply", n, len(reply))
		original := bytes.Clone(reply)
		p := compiled(t)
		if again, err := p.learnLevels(reply); err != nil && (again || !errors.Is(err, errReply)) {
			t.Fatalf("levels: %v, %v", again, err)
		}
		var settling scriptCall
		require.NoError(t, settling.settle(p.bounds, make([]settlement, len(p.bounds))))
		if _, err := settling.readSettled(reply); err != nil && !errors.Is(err, errReply) {
			t.Fatalf("settlement: %v", err)
		}
		if _, _, err := p.readReply(reply); err != nil {
			require.True(t, errors.Is(err, errReply), "take: %v", err)
		} else if err := p.fillStatuses(make([]decision.Status, 2), true); err != nil && !errors.Is(err, errScriptDiffers) {
			t.Fatalf("statuses: %v", err)
		} else if n != len(reply) {
			t.Fatalf("%d of %d bytes are a reply, but all are read", n, len(reply))
		}
		require.True(t, bytes.Equal(reply, original), "reading has changed the reply")
	})
}

// compiled is a compiled request of one enforced bound and one sliding log.
func compiled(t testing.TB) *scriptCall {
	t.Helper()
	log := of(bound(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: 5, Window: hour}), "u")
	p := new(scriptCall)
	require.NoError(t, p.compile([]policy.Bound{hundred(t), log}))
	return p
}

// element draws anything that a reply of Redis can hold.
func element(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 5
		if depth == 0 {
			kinds = 4
		}
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Int64Range(-2, 8).Draw(t, "number")
		case 2:
			return strings.Repeat("\x01", rapid.SampledFrom([]int{0, 1, 4, 37, 41, 78}).Draw(t, "length"))
		case 3:
			return rapid.Int64().Draw(t, "any number")
		default:
			return rapid.SliceOfN(element(depth-1), 0, 13).Draw(t, "array")
		}
	})
}

func TestAReplyOfAnyFormIsReadOrRejectedAndNeverPanics(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := compiled(t)
		reply := rapid.SliceOfN(element(1), 0, 6).Draw(rt, "reply")
		if _, _, err := p.readReply(scriptReply(reply...)); err != nil {
			require.True(rt, errors.Is(err, errReply), "%v: %v", reply, err)
			return
		}
		if err := p.fillStatuses(make([]decision.Status, 2), true); err != nil && !errors.Is(err, errScriptDiffers) {
			rt.Fatalf("%v: %v", reply, err)
		}
	})
}

func TestRepliesThatTheScriptNeverGivesAreRejected(t *testing.T) {
	now := int64(1_700_000_000_000_000)
	cases := map[string][]any{
		"nothing":               {},
		"a value is missing":    {nil, now},
		"one element too many":  {nil, nil, now, nil, nil, nil, nil},
		"crowds that are one":   {nil, nil, now, nil, nil, int64(1)},
		"only one array":        {nil, nil, now, nil},
		"a clock of text":       {nil, nil, "now"},
		"a value of arrays":     {nil, []any{}, now},
		"denials that are one":  {nil, nil, now, int64(1), nil},
		"a denial by no record": {nil, nil, now, []any{int64(3)}, nil},
		"a denial by text":      {nil, nil, now, []any{"1"}, nil},
		"half a view":           {nil, nil, now, nil, []any{int64(1), int64(0), now}},
		"a view of no record":   {nil, nil, now, nil, []any{int64(0), int64(0), now, now, int64(0), int64(0)}},
		"a view with text":      {nil, nil, now, nil, []any{int64(2), "0", now, now, int64(0), int64(0)}},
	}
	for name, reply := range cases {
		t.Run(name, func(t *testing.T) {
			if _, _, err := compiled(t).readReply(scriptReply(reply...)); !errors.Is(err, errReply) {
				t.Errorf("error is %v, want that the reply has another form", err)
			}
		})
	}
}

func TestADenialThatTheLimitWouldAdmitIsAnError(t *testing.T) {
	p := compiled(t)
	if _, _, err := p.readReply(scriptReply(nil, nil, int64(1_700_000_000_000_000), []any{int64(1)}, nil)); err != nil {
		t.Fatal(err)
	}
	if err := p.fillStatuses(make([]decision.Status, 2), true); !errors.Is(err, errScriptDiffers) {
		t.Errorf("error is %v, want that script and limit differ", err)
	}
}

func TestTooManyBoundsAreRejectedAsAWhole(t *testing.T) {
	many := make([]policy.Bound, maxSubjects+1)
	for i := range many {
		many[i] = of(hundred(t), strings.Repeat("u", i))
	}
	if err := new(scriptCall).compile(many); !errors.Is(err, errTooMany) {
		t.Errorf("%d subjects: %v", len(many), err)
	}
	assert.NoError(t, new(scriptCall).compile(many[:maxSubjects]), "%d subjects", maxSubjects)
	many = make([]policy.Bound, maxRecords+1)
	for i := range many {
		many[i] = hundred(t)
		many[i].Key.Policy = strings.Repeat("p", i)
	}
	if err := new(scriptCall).compile(many); !errors.Is(err, errTooMany) {
		t.Errorf("%d bounds: %v", len(many), err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(strings.Repeat("\x01", 29), int64(0))
	f.Add("\x05"+strings.Repeat("\xff", 28), int64(1_700_000_000_000_000))
	f.Fuzz(func(t *testing.T, bucket string, now int64) {
		if len(bucket) != entrySize-nameSize {
			return
		}
		state, ok := decode([]byte(bucket), limit.Micros(now))
		assert.True(t, ok || state.Algorithm == limit.None, "an impossible bucket is read as %+v", state)
		if state.Algorithm == limit.TokenBucket && state.Base <= 0 {
			t.Errorf("a token bucket has %d units per token", state.Base)
		}
		assert.True(t, state.Spent >= 0 && state.Previous >= 0 && state.At >= 0, "a state has negative numbers: %+v", state)
	})
}

// The scripts as Redis gets them stand in testdata, to be read as a whole and to show each change of the assembled
// text.
func TestTheAssembledScriptsAreTheGoldenFiles(t *testing.T) {
	for name, script := range map[string]*script{"script.lua": takeScript, "split.lua": splitScript} {
		golden.Check(t, filepath.Join("testdata", name), script.source)
	}
}
