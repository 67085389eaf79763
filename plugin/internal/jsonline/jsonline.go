// Package jsonline makes lines of JSON safe to look at: names come from clients and rows, and a terminal obeys some of
// their characters, such as U+202E, which shows what follows it from right to left.
package jsonline

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape returns JSON text in which each character that is not printable is escaped: it is the same JSON. Control
// characters of ASCII stay, which JSON itself escapes within strings. The result may be the text itself.
func Escape(text []byte) []byte {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if !isSafe(r) {
			return escape(text, i)
		}
		i += size
	}
	return text
}

// escape returns text escaped, of which the first bytes need no escape.
func escape(text []byte, first int) []byte {
	out := append(make([]byte, 0, 2*len(text)), text[:first]...)
	for i := first; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if isSafe(r) {
			out = append(out, text[i:i+size]...)
		} else {
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
		i += size
	}
	return out
}

// isSafe reports whether a character may stand in a line as it is.
func isSafe(r rune) bool { return r < 0x7f || unicode.IsPrint(r) }

// Writer returns a writer of lines of JSON that escapes them as Escape does, and writes each at once to out.
func Writer(out io.Writer) io.Writer { return writer{out} }

type writer struct{ out io.Writer }

// Write implements [io.Writer].
func (w writer) Write(line []byte) (int, error) {
	if _, err := w.out.Write(Escape(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
