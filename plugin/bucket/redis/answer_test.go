package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
			if !errors.Is(err, errReply) {
				rt.Fatalf("%v: %v", reply, err)
			}
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
	if err := new(scriptCall).compile(many[:maxSubjects]); err != nil {
		t.Errorf("%d subjects: %v", maxSubjects, err)
	}
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
		if !ok && state.Algorithm != limit.None {
			t.Errorf("an impossible bucket is read as %+v", state)
		}
		if state.Algorithm == limit.TokenBucket && state.Base <= 0 {
			t.Errorf("a token bucket has %d units per token", state.Base)
		}
		if state.Spent < 0 || state.Previous < 0 || state.At < 0 {
			t.Errorf("a state has negative numbers: %+v", state)
		}
	})
}
