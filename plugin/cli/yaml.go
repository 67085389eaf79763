package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
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
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(escapeYAML(string(document))), &n); err != nil { // JSON is YAML
		return "", err
	}
	styleYAML(&n)
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	err = encoder.Encode(&n)
	return escapeYAML(b.String()), err
}

// styleYAML writes lists and mappings in lines, and quotes only strings that need it.
func styleYAML(n *yaml.Node) {
	n.Style = 0
	if strings.ContainsFunc(n.Value, isUnprintable) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, inner := range n.Content {
		styleYAML(inner)
	}
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// escapeYAML escapes what is not printable in a document, which is in double quotes there.
func escapeYAML(document string) string {
	if !strings.ContainsFunc(document, func(r rune) bool { return r != '\n' && isUnprintable(r) }) {
		return document
	}
	var b strings.Builder
	for _, r := range document {
		if r == '\n' || !isUnprintable(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\U%08X`, r)
		}
	}
	return b.String()
}

// plainYAML matches a text that YAML reads as a string without quotes, even in a flow mapping, unless it is one of
// yamlWords.
var plainYAML = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9 _./+-]*[A-Za-z0-9_./+-])?$`)

// yamlWords are the words that YAML reads as a boolean or null, whatever their letter case.
var yamlWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}

// yamlString returns a string as YAML: plain where that is surely read as the same string, else in double quotes, with
// escapes for what is not printable.
func yamlString(text string) string {
	if plainYAML.MatchString(text) && !slices.Contains(yamlWords, strings.ToLower(text)) {
		return text
	}
	return strconv.Quote(text) // YAML has all escapes of Go
}

// csvLine returns a line of CSV (RFC 4180, with \n). Every cell is quoted, and none is a formula; see csvText.
func csvLine(cells ...string) string {
	quoted := make([]string, len(cells))
	for i, cell := range cells {
		quoted[i] = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
	}
	return strings.Join(quoted, ",") + "\n"
}

const (
	// formulaStarts begin a formula in a spreadsheet, also in their full-width forms. The apostrophe is one of them so
	// that a name that begins with it stays distinct.
	formulaStarts = "=+-@'\t\r\n＝＋－＠"
	// cellStarts are what a program may split a text at although it is quoted, such as one that expects semicolons.
	cellStarts = ",;|\t\r\n\""
)

// csvText returns a text that no spreadsheet takes for a formula. It puts an apostrophe before each character that
// begins a formula, at the begin of the text and where a program may split it.
func csvText(text string) string {
	var b strings.Builder
	begins := true
	for _, r := range text {
		if begins && strings.ContainsRune(formulaStarts, r) {
			b.WriteByte('\'')
		}
		b.WriteRune(r)
		begins = strings.ContainsRune(cellStarts, r)
	}
	return b.String()
}
