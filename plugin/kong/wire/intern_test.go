package wire

import (
	"fmt"
	"strings"
	"testing"
)

func TestARepeatedStringIsEqualAndAllocatesNothing(t *testing.T) {
	interner := NewInterner()
	buffer := []byte("acme")
	first := interner.String(buffer)
	if got := testing.AllocsPerRun(100, func() { interner.String(buffer) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
	copy(buffer, "evil")
	if again := interner.String([]byte("acme")); first != "acme" || again != "acme" {
		t.Errorf("%q and %q after the buffer has changed, want acme", first, again)
	}
}

func TestEvictedStringsAreStillReturnedRight(t *testing.T) {
	interner := NewInterner()
	for round := range 2 {
		for i := range 10 * internSets * internPerSet {
			want := fmt.Sprint("tenant-", i)
			if got := interner.String([]byte(want)); got != want {
				t.Fatalf("round %d: %q, want %q", round, got, want)
			}
		}
	}
	for _, want := range []string{"", strings.Repeat("x", internLength+1), "\xff\x00"} {
		if got := interner.String([]byte(want)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
