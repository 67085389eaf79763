package denial

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// torn is a stream that takes a few bytes, once, and fails.
type torn struct {
	text strings.Builder
	room int
}

func (w *torn) Write(text []byte) (int, error) {
	n := min(len(text), w.room)
	w.text.Write(text[:n])
	w.room = 1 << 20
	if n < len(text) {
		return n, errDiskFull
	}
	return n, nil
}

func TestALineThatWasWrittenInPartDamagesNoOther(t *testing.T) {
	batch := []Line{{Text: []byte(`{"a":1}`)}, {Text: []byte(`{"b":2}`)}}
	to := &torn{room: 11}
	w := NewWriter(to)
	assert.ErrorIs(t, w.Write(t.Context(), batch), errDiskFull)
	assert.NoError(t, w.Write(t.Context(), batch))
	const want = "{\"a\":1}\n{\"b\n{\"a\":1}\n{\"b\":2}\n"
	assert.Equal(t, want, to.text.String())
}

// lazy is a stream that takes nothing and says nothing.
type lazy struct{}

func (lazy) Write([]byte) (int, error) { return 0, nil }

func TestAStreamThatTakesLessThanItShouldHasFailed(t *testing.T) {
	assert.ErrorIs(t, NewWriter(lazy{}).Write(t.Context(), []Line{{Text: []byte("{}")}}), io.ErrShortWrite)
}

func TestReasonsHaveTheNamesThatMetricsUse(t *testing.T) {
	got := ""
	for r := Groups; r < reasons; r++ {
		got += r.String() + " "
	}
	assert.Equal(t, "groups queue sink rejected shutdown ", got)
}
