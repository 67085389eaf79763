package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// everyKind is one override of each source, kind and target that there can be.
func everyKind() []*CompiledOverride {
	var all []*CompiledOverride
	for _, detector := range []bool{false, true} {
		for _, k := range []kind{ban, exempt, customLimit, multiplier} {
			if detector && (k == exempt || k == customLimit) {
				continue
			}
			for on := range targets {
				if k != exempt && (on == onTag || on == onEndpointOfAll) {
					continue
				}
				o := &CompiledOverride{ID: 1, kind: k, target: on, Detector: detector, quantity: 500, Expires: 1000}
				all = append(all, o)
			}
		}
	}
	return all
}

func (o *CompiledOverride) label() string {
	source := "commercial"
	if o.Detector {
		source = "detector"
	}
	return source + " " + kindNames[o.kind] + " on " + targetNames[o.target]
}

var orderNames = [...]string{
	firstWins: "beats", secondWins: "yields to", firstThenSecond: "is followed by", secondThenFirst: "follows",
}

// Every pair of what overrides there can be, each once: the file is for people to read, too.
func TestThePrecedenceOfEveryPairIsTheDocumentedOne(t *testing.T) {
	var b strings.Builder
	all := everyKind()
	for i, first := range all {
		for _, second := range all[i+1:] {
			fmt.Fprintf(&b, "%s %s %s\n", first.label(), orderNames[precede(first, second, 1, 1)], second.label())
		}
	}
	golden.Check(t, "testdata/precedence.txt", b.String())
}

// The rules of the documentation, each checked for all pairs that it is about.
func TestThePrecedenceKeepsTheRulesForEveryPair(t *testing.T) {
	for _, a := range everyKind() {
		for _, b := range everyKind() {
			got := precede(a, b, 1, 1)
			want := got
			switch {
			case a.kind == ban && b.kind != ban:
				want = firstWins
			case a.kind == exempt && b.kind != exempt && b.kind != ban:
				want = firstWins
			case a.kind >= customLimit && b.kind >= customLimit && !a.Detector && b.Detector:
				want = firstThenSecond
			case a.kind == b.kind && a.Detector == b.Detector && a.target < b.target:
				want = firstWins
			case a.kind == customLimit && b.kind == multiplier && !b.Detector && a.target <= b.target:
				want = firstWins
			case a.kind == customLimit && b.kind == multiplier && !b.Detector && a.target > b.target:
				want = secondWins
			}
			if got != want {
				t.Errorf("%s %s %s, want: %s", a.label(), orderNames[got], b.label(), orderNames[want])
			}
			mirror := [...]order{
				firstWins: secondWins, secondWins: firstWins, firstThenSecond: secondThenFirst, secondThenFirst: firstThenSecond,
			}
			equal := a.kind == b.kind && a.target == b.target // these have one id here, by which real ones differ
			if back := precede(b, a, 1, 1); !equal && back != mirror[got] {
				t.Errorf("%s %s %s, but seen from the other side it %s", a.label(), orderNames[got], b.label(), orderNames[back])
			}
		}
	}
}

func TestWhatIsEqualOtherwiseIsDecidedByNumbersNamesAndAge(t *testing.T) {
	penalty := func(factor int64, on target) *CompiledOverride {
		return &CompiledOverride{ID: 2, kind: multiplier, Detector: true, quantity: factor, target: on}
	}
	tests := []struct {
		name           string
		a, b           *CompiledOverride
		placeA, placeB int
		want           order
	}{
		{
			"the longer ban", &CompiledOverride{kind: ban, target: onTenant, Expires: 9},
			&CompiledOverride{kind: ban, target: onUser, Expires: 8}, 0, 0, firstWins,
		},
		{
			"the ban for good", &CompiledOverride{kind: ban, target: onTenant},
			&CompiledOverride{kind: ban, target: onUser, Expires: 1 << 62}, 0, 0, firstWins,
		},
		{
			"a ban that ends, and one for good", &CompiledOverride{kind: ban, Expires: 1 << 62},
			&CompiledOverride{kind: ban, target: onTenant}, 0, 0, secondWins,
		},
		{
			"a detector's longer ban", &CompiledOverride{kind: ban, Expires: 8},
			&CompiledOverride{kind: ban, Detector: true, Expires: 9}, 0, 0, secondWins,
		},
		{"the stricter penalty, however wide", penalty(900, onUserEndpoint), penalty(100, onTenant), 0, 0, secondWins},
		{"the more specific of equal penalties", penalty(100, onUser), penalty(100, onTenant), 0, 0, firstWins},
		{
			"the narrower endpoint", &CompiledOverride{ID: 1, kind: multiplier, target: onEndpoint},
			&CompiledOverride{ID: 2, kind: customLimit, target: onEndpoint}, 0, 1, firstWins,
		},
		{
			"the one that names its policy", &CompiledOverride{ID: 1, kind: multiplier, policy: "daily"},
			&CompiledOverride{ID: 2, kind: multiplier}, 0, 0, firstWins,
		},
		{
			"the younger", &CompiledOverride{ID: 1, kind: multiplier, policy: "daily"},
			&CompiledOverride{ID: 2, kind: multiplier, policy: "daily"}, 0, 0, secondWins,
		},
	}
	for _, test := range tests {
		if got := precede(test.a, test.b, test.placeA, test.placeB); got != test.want {
			t.Errorf("%s: the first %s the second, want: %s", test.name, orderNames[got], orderNames[test.want])
		}
	}
}
