package kongplugin

import (
	"fmt"
	"strings"
	"testing"
)

func TestANameThatComesAgainNeedsNoMemoryAndIsTheSame(t *testing.T) {
	known := newNames()
	buffer := []byte("acme")
	first := known.text(buffer)
	if got := testing.AllocsPerRun(100, func() { known.text(buffer) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
	copy(buffer, "evil")
	if again := known.text([]byte("acme")); first != "acme" || again != "acme" {
		t.Errorf("%q and %q after the buffer has changed, want acme", first, again)
	}
}

func TestNamesAreForgottenNotMistaken(t *testing.T) {
	known := newNames()
	for round := range 2 {
		for i := range 10 * nameSets * namesPerSet {
			want := fmt.Sprint("tenant-", i)
			if got := known.text([]byte(want)); got != want {
				t.Fatalf("round %d: %q, want %q", round, got, want)
			}
		}
	}
	for _, want := range []string{"", strings.Repeat("x", longestName+1), "\xff\x00"} {
		if got := known.text([]byte(want)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
