package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// writeYAML writes a document. What a terminal would obey is escaped, which YAML reads as the same.
func writeYAML(w io.Writer, value any) error {
	return writeYAMLAfter("", w, value)
}

// writeYAMLAfter writes a document after a text, such as the mark that separates documents.
func writeYAMLAfter(before string, w io.Writer, value any) error {
	text, err := yamlOf(value)
	if err == nil {
		_, err = io.WriteString(w, before+text)
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// yamlOf returns a value as YAML, with the fields that its JSON has, in the same order.
func yamlOf(value any) (string, error) {
	document, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	y := yamlEncoder{from: json.NewDecoder(bytes.NewReader(document))}
	y.from.UseNumber()
	err = y.value("", "")
	return string(y.text), err
}

// yamlEncoder turns the tokens of a JSON document into YAML, without a tree of nodes: lists can have 100,000 rows.
type yamlEncoder struct {
	from *json.Decoder
	text []byte
}

// value appends the next value. The line it begins in has so far the mark of an item (-) or a key (:), or nothing; the
// lines below it are indented.
func (y *yamlEncoder) value(mark, indent string) error {
	token, err := y.from.Token()
	if err != nil {
		return err
	}
	opened, isDelim := token.(json.Delim)
	switch {
	case isDelim && y.from.More():
		err = y.children(opened, mark, indent)
	case isDelim && opened == '{':
		y.end(mark, "{}")
	case isDelim:
		y.end(mark, "[]")
	default:
		y.end(mark, yamlScalar(token))
	}
	if err == nil && isDelim {
		_, err = y.from.Token() // the closing delimiter
	}
	return err
}

// end appends a value that is complete, and ends the line.
func (y *yamlEncoder) end(mark, value string) {
	if mark != "" {
		y.text = append(y.text, ' ')
	}
	y.text = append(append(y.text, value...), '\n')
}

// children appends the items of a list or the fields of an object, each in lines of its own. Those of an item begin in
// its line.
func (y *yamlEncoder) children(opened json.Delim, mark, indent string) error {
	switch mark {
	case "-":
		y.text = append(y.text, ' ')
	case ":":
		y.text = append(y.text, '\n')
	}
	for first := true; y.from.More(); first = false {
		if !first || mark != "-" {
			y.text = append(y.text, indent...)
		}
		childMark := "-"
		if opened == '{' {
			key, err := y.from.Token()
			if err != nil {
				return err
			}
			y.text = append(y.text, yamlScalar(key)...)
			childMark = ":"
		}
		y.text = append(y.text, childMark...)
		if err := y.value(childMark, indent+"  "); err != nil {
			return err
		}
	}
	return nil
}

// yamlScalar returns a string, a number, a boolean or null as YAML.
func yamlScalar(token json.Token) string {
	switch t := token.(type) {
	case string:
		return yamlString(t)
	case nil:
		return "null"
	}
	return fmt.Sprint(token)
}

// yamlString returns a string as YAML: plain where that is surely read as the same string, else in double quotes, with
// escapes for what is not printable.
func yamlString(text string) string {
	if isPlainYAML(text) {
		return text
	}
	quoted := make([]byte, 0, len(text)+2)
	quoted = append(quoted, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			quoted = append(quoted, '\\', byte(r))
		case r == '\n':
			quoted = append(quoted, `\n`...)
		case unicode.IsPrint(r):
			quoted = utf8.AppendRune(quoted, r)
		default:
			quoted = fmt.Appendf(quoted, `\U%08X`, r)
		}
	}
	return string(append(quoted, '"'))
}

// yamlWords are the words that YAML reads as a boolean or null, whatever their letter case.
var yamlWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// isPlainYAML reports whether YAML reads a text as a string without quotes, even in a flow mapping: it begins with an
// ASCII letter, ends without a blank, and consists of characters that mean nothing to YAML.
func isPlainYAML(text string) bool {
	if text == "" || !isASCIILetter(text[0]) || text[len(text)-1] == ' ' {
		return false
	}
	for i := range len(text) {
		if c := text[i]; !isASCIILetter(c) && (c < '0' || c > '9') && !strings.ContainsRune(" _-./+", rune(c)) {
			return false
		}
	}
	return len(text) > len("false") || !slices.Contains(yamlWords, strings.ToLower(text))
}

func isASCIILetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
