package cli

import (
	"fmt"
	"io"
	"iter"
	"strings"
)

// listing is how rows are shown: the titles of its columns, separated by |, and the cells of a row.
type listing[T any] struct {
	title string
	row   func(T) []any
}

// columns adds an aligned table.
func columns[T any](out *page, title string, rows []T, row func(T) []any) {
	listing[T]{title, row}.add(out, rows...)
}

// head returns the line of titles.
func (l listing[T]) head() []string { return strings.Split(l.title, "|") }

// line returns the cells of a row as text.
func (l listing[T]) line(row T) []string {
	var line []string
	for _, cell := range l.row(row) {
		line = append(line, cellText(cell))
	}
	return line
}

// add adds rows to a page, aligned among themselves.
func (l listing[T]) add(out *page, rows ...T) {
	lines := [][]string{l.head()}
	for _, row := range rows {
		lines = append(lines, l.line(row))
	}
	new(grid).add(out, lines)
}

// listPart is how many rows of a long list are aligned together and written at once.
const listPart = 1000

// show writes rows while they come, so that a list of any length takes little memory. An error ends it: what has been
// written before is true, but not all.
func (l listing[T]) show(c *call, rows iter.Seq2[T, error]) error {
	switch c.format {
	case formatJSON:
		return showJSON(c.stdout, rows)
	case formatYAML:
		return showYAML(c.stdout, rows)
	}
	var widths grid
	lines := [][]string{l.head()}
	write := func() error {
		var out page
		widths.add(&out, lines)
		lines = lines[:0]
		return out.write(c.stdout)
	}
	for row, err := range rows {
		if err == nil && len(lines) == listPart {
			err = write()
		}
		if err != nil {
			return err
		}
		lines = append(lines, l.line(row))
	}
	return write()
}

// showJSON writes rows as a JSON array while they come.
func showJSON[T any](w io.Writer, rows iter.Seq2[T, error]) error {
	before, after := "[\n  ", "[]\n"
	for row, err := range rows {
		if err != nil {
			return err
		}
		text, err := jsonText(row, "  ")
		if err == nil {
			_, err = io.WriteString(w, before+text)
		}
		if err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		before, after = ",\n  ", "\n]\n"
	}
	if _, err := io.WriteString(w, after); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
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
