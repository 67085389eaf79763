// Package jsonline makes lines of JSON safe for a terminal. Names come from clients and rows, and can have characters
// that control a terminal, such as U+202E, which reverses the text after it.
package jsonline

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape returns JSON text with every character escaped that is not printable. The JSON has the same value. Escape
// leaves ASCII control characters, which JSON escapes within strings. The result may be the text itself.
func Escape(text []byte) []byte {
	if !bytes.ContainsFunc(text, isUnsafe) {
		return text
	}
	out := make([]byte, 0, 2*len(text))
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if !isUnsafe(r) {
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

func isUnsafe(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// Writer returns a writer that escapes each line of JSON as Escape does, and writes it to out in one call.
func Writer(out io.Writer) io.Writer { return writer{out} }

type writer struct{ out io.Writer }

func (w writer) Write(line []byte) (int, error) {
	if _, err := w.out.Write(Escape(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
