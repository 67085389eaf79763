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

// Every pair of what overrides there can be, each once: the file is for people to read, too. A penalty that changes the
// result of a commercial override is no pair.
func TestThePrecedenceOfEveryPairIsTheDocumentedOne(t *testing.T) {
	var b strings.Builder
	all := everyKind()
	for i, first := range all {
		for _, second := range all[i+1:] {
			if first.Detector != second.Detector && first.kind > exempt && second.kind > exempt {
				continue
			}
			verb := "beats"
			if order, _ := decidePrecedence(first, second, 1, 1); order > 0 {
				verb = "yields to"
			}
			fmt.Fprintf(&b, "%s %s %s\n", first.label(), verb, second.label())
		}
	}
	golden.Check(t, "testdata/precedence.txt", b.String())
}
