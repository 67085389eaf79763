package policysync

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// stream is a binary COPY of rows of texts; "\x00" is NULL.
func stream(rows ...[]string) []byte {
	out := append([]byte(signature), 0, 0, 0, 0, 0, 0, 0, 0)
	for _, row := range rows {
		out = binary.BigEndian.AppendUint16(out, uint16(len(row)))
		for _, field := range row {
			if field == "\x00" {
				out = binary.BigEndian.AppendUint32(out, 0xffff_ffff)
				continue
			}
			out = binary.BigEndian.AppendUint32(out, uint32(len(field)))
			out = append(out, field...)
		}
	}
	return append(out, 0xff, 0xff)
}

// parse reads a stream of two columns in pieces of a size.
func parse(data []byte, size int) (rows [][]string, err error) {
	in := copyReader{columns: 2, row: func(fields [][]byte) error {
		row := make([]string, len(fields))
		for i, f := range fields {
			if row[i] = string(f); f == nil {
				row[i] = "\x00"
			}
		}
		rows = append(rows, row)
		return nil
	}}
	for piece := range slices.Chunk(data, size) {
		if _, err := in.Write(piece); err != nil {
			return rows, err
		}
	}
	return rows, in.checkEnd()
}

func TestCopyIsReadInPiecesOfAnySize(t *testing.T) {
	want := [][]string{{"a", ""}, {"\x00", strings.Repeat("long", 100)}, {"\x00", "\x00"}, {"last", "one"}}
	data := stream(want...)
	for size := 1; size <= len(data); size++ {
		rows, err := parse(data, size)
		if err != nil {
			t.Fatalf("pieces of %d bytes: %v", size, err)
		}
		if !slices.EqualFunc(rows, want, slices.Equal) {
			t.Fatalf("pieces of %d bytes: got %q, want %q", size, rows, want)
		}
	}
	for length := range data {
		if _, err := parse(data[:length], 7); err == nil {
			t.Errorf("%d of %d bytes are taken for a whole copy", length, len(data))
		}
	}
}

func TestCopyThatIsNotOneIsRefused(t *testing.T) {
	whole := stream([]string{"a", "b"})
	change := func(at int, to ...byte) []byte {
		out := slices.Clone(whole)
		copy(out[at:], to)
		return out
	}
	for what, data := range map[string][]byte{
		"a text":                   []byte("a\tb\n\\.\n"),
		"another signature":        change(0, 'X'),
		"a flag that is not known": change(len(signature), 0, 1),
		"an endless header":        change(len(signature)+4, 0xff, 0xff, 0xff, 0xff),
		"a row of other columns":   stream([]string{"a", "b", "c"}),
		"a field of less than 0":   change(headerLength+2, 0xff, 0xff, 0xff, 0xfe),
		"a field without an end":   change(headerLength+2, 0x7f, 0xff, 0xff, 0xff),
		"bytes after the end":      append(slices.Clone(whole), 1),
	} {
		if _, err := parse(data, 5); err == nil {
			t.Errorf("%s: it is taken", what)
		}
	}
}

func TestErrorOfARowEndsTheCopy(t *testing.T) {
	want := errors.New("a row is wrong")
	in := copyReader{columns: 1, row: func([][]byte) error { return want }}
	if _, err := in.Write(stream([]string{"a"})); !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

func FuzzCopy(f *testing.F) {
	f.Add(stream([]string{"a", "b"}, []string{"\x00", ""}), 3)
	f.Add(stream(), 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		whole, err := parse(data, max(1, len(data)))
		pieces, alsoErr := parse(data, min(max(size, 1), max(1, len(data))))
		if (err == nil) != (alsoErr == nil) || err == nil && !slices.EqualFunc(whole, pieces, slices.Equal) {
			t.Errorf("in one piece: %q (%v); in pieces: %q (%v)", whole, err, pieces, alsoErr)
		}
		if err == nil && string(stream(whole...)[headerLength:]) != string(data[len(data)-len(stream(whole...))+headerLength:]) &&
			!slices.ContainsFunc(whole, func(row []string) bool { return slices.Contains(row, "\x00") }) {
			t.Errorf("%q is read from %q", whole, data)
		}
	})
}
