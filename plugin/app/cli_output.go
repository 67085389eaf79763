package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// outputFlag defines -o.
func (c *call) outputFlag() {
	c.flags.Func("o", "the `format` of the output: table or json; default: table", func(text string) error {
		if text != "table" && text != "json" {
			return errors.New("must be table or json")
		}
		c.json = text == "json"
		return nil
	})
}

// print writes a value as JSON, or as people read it.
func (c *call) print(value any, asText func(w io.Writer)) error {
	if c.json {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		return nil
	}
	var b strings.Builder
	asText(&b)
	if _, err := io.WriteString(c.stdout, b.String()); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// columns writes an aligned table.
func columns[T any](w io.Writer, title string, rows []T, row func(T) []any) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	lines := [][]string{strings.Split(title, "|")}
	for _, r := range rows {
		var line []string
		for _, cell := range row(r) {
			line = append(line, cellText(cell))
		}
		lines = append(lines, line)
	}
	for _, line := range lines {
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	_ = t.Flush() // its writer is a strings.Builder, which never fails
}

// cellText is a value in a table; - stands for what is absent.
func cellText(cell any) string {
	text := fmt.Sprint(cell)
	switch v := cell.(type) {
	case time.Time:
		text = timeText(v)
	case bool:
		text = map[bool]string{true: "yes", false: "no"}[v]
	}
	if text = plainText(text); text == "" {
		return "-"
	}
	return text
}

// plainText is a text in one line. What a terminal would obey is not passed on: names come from requests.
func plainText(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// timeText is an instant in a table.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// counted is a number of things: 1 node, 2 nodes.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// orDefault is what stands in a table for a field that was left out.
func orDefault(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
