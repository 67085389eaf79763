package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"
)

// partSize is how many bytes of rows are written at once, and a little more.
const partSize = 16 << 10

// parts writes texts in parts of whole texts, because a [screen] takes whole characters.
type parts struct {
	to   io.Writer
	held strings.Builder
}

func (p *parts) add(text string) error {
	p.held.WriteString(text)
	if p.held.Len() < partSize {
		return nil
	}
	return p.flush()
}

func (p *parts) flush() error {
	defer p.held.Reset()
	return writeText(p.to, p.held.String(), nil)
}

// showJSON writes rows as a JSON array while they come.
func showJSON[T any](w io.Writer, rows iter.Seq2[T, error]) error {
	out := parts{to: w}
	before, after := "[\n  ", "[]\n"
	for row, err := range rows {
		if err != nil {
			return err
		}
		text, err := jsonText(row, "  ")
		if err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		if err := out.add(before + text); err != nil {
			return err
		}
		before, after = ",\n  ", "\n]\n"
	}
	out.held.WriteString(after)
	return out.flush()
}

// showYAML writes rows as a YAML list while they come.
func showYAML[T any](w io.Writer, rows iter.Seq2[T, error]) error {
	empty := true
	for row, err := range rows {
		if err != nil {
			return err
		}
		if err := writeYAML(w, []any{row}); err != nil {
			return err
		}
		empty = false
	}
	if empty {
		return writeYAML(w, []T{})
	}
	return nil
}

// grid aligns the lines of a table that is shown in parts: no column is narrower than it was before. The zero value is
// ready.
type grid struct{ widths []int }

func (g *grid) add(out *page, lines [][]string) {
	for _, line := range lines {
		for i, cell := range line {
			if i == len(g.widths) {
				g.widths = append(g.widths, 0)
			}
			g.widths[i] = max(g.widths[i], cellWidth(cell))
		}
	}
	for _, line := range lines {
		for i, cell := range line {
			out.text.WriteString(cell)
			if i < len(line)-1 {
				out.text.WriteString(strings.Repeat(" ", g.widths[i]-cellWidth(cell)+2))
			}
		}
		out.gap()
	}
}

// writeYAML writes a document. What a terminal would obey is escaped, which YAML reads as the same.
func writeYAML(w io.Writer, value any) error {
	text, err := yamlOf(value)
	return writeText(w, text, err)
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

// showCSV writes rows as CSV (RFC 4180, with \n) while they come, below a line with the names of its columns: those of
// the fields in JSON, or name=field.field. Every cell is quoted, and no text is a formula; see csvText.
func showCSV[T any](w io.Writer, rows iter.Seq2[T, error], columns ...string) error {
	out := parts{to: w}
	paths, line := make([]string, len(columns)), make([]string, len(columns))
	for i, column := range columns {
		name, path, renamed := strings.Cut(column, "=")
		if line[i], paths[i] = name, name; renamed {
			paths[i] = path
		}
	}
	out.held.WriteString(csvLine(line...))
	for row, err := range rows {
		var tree any
		if err == nil {
			tree, err = treeOf(row)
		}
		if err != nil {
			return err
		}
		for i, path := range paths {
			line[i] = csvCell(tree, path)
		}
		if err := out.add(csvLine(line...)); err != nil {
			return err
		}
	}
	return out.flush()
}

func csvCell(tree any, path string) string {
	for name := range strings.SplitSeq(path, ".") {
		object, _ := tree.(fields)
		tree = nil
		for _, f := range object {
			if f.name == name {
				tree = f.value
			}
		}
	}
	switch v := tree.(type) {
	case nil:
		return ""
	case string:
		if _, err := strconv.ParseFloat(v, 64); err == nil && strings.HasSuffix(path, "usd") {
			return v // may be negative, which is no formula
		}
		return csvText(v)
	}
	return fmt.Sprint(tree)
}

// csvLine returns a line with every cell in quotes.
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
