package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			require.Equal(t, want, interner.String([]byte(want)), "round %d", round)
		}
	}
	for _, want := range []string{"", strings.Repeat("x", internLength+1), "\xff\x00"} {
		assert.Equal(t, want, interner.String([]byte(want)))
	}
}
