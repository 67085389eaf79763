package denial

import (
	"errors"
	"io"
	"strings"
	"testing"
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
	if err := w.Write(t.Context(), batch); !errors.Is(err, errDiskFull) {
		t.Errorf("error is %v, want the stream's", err)
	}
	if err := w.Write(t.Context(), batch); err != nil {
		t.Error(err)
	}
	const want = "{\"a\":1}\n{\"b\n{\"a\":1}\n{\"b\":2}\n"
	if to.text.String() != want {
		t.Errorf("written %q, want %q", to.text.String(), want)
	}
}

// lazy is a stream that takes nothing and says nothing.
type lazy struct{}

func (lazy) Write([]byte) (int, error) { return 0, nil }

func TestAStreamThatTakesLessThanItShouldHasFailed(t *testing.T) {
	if err := NewWriter(lazy{}).Write(t.Context(), []Line{{Text: []byte("{}")}}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("error is %v, want %v", err, io.ErrShortWrite)
	}
}

func TestReasonsHaveTheNamesThatMetricsUse(t *testing.T) {
	got := ""
	for r := Groups; r < reasons; r++ {
		got += r.String() + " "
	}
	if want := "groups queue sink rejected shutdown "; got != want {
		t.Errorf("names are %q, want %q", got, want)
	}
}
