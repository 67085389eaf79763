package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// table is the table of one group.
type table struct {
	across []label  // combinations of the labels whose values share a row
	names  []string // columns of labels
	units  []string // columns of metrics
	lines  []*line
}

// line is one row of a table.
type line struct {
	labels map[string]string
	cells  map[string][]string // by unit: one for each combination in table.across, "" if not measured
}

// missing is the cell without a number.
const missing = "–"

// newTable returns the table of a group.
func newTable(g *group, across []string) *table {
	t := new(table)
	for _, r := range g.rows {
		shared := label{}
		own := map[string]string{}
		for _, l := range r.labels {
			if slices.Contains(across, l.name) && l.name != "" {
				shared = label{join(shared.name, l.name), join(shared.value, l.value)}
				continue
			}
			own[l.name] = l.value
			t.names = appendNew(t.names, l.name)
		}
		t.across = appendNew(t.across, shared)
		t.line(own).put(t, r, slices.Index(t.across, shared))
	}
	return t
}

// join joins texts with a comma.
func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

// appendNew appends an item that the list does not have.
func appendNew[T comparable](list []T, item T) []T {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}

// line returns the line with labels, and adds it if needed.
func (t *table) line(labels map[string]string) *line {
	for _, l := range t.lines {
		if maps.Equal(l.labels, labels) {
			return l
		}
	}
	l := &line{labels: labels, cells: map[string][]string{}}
	t.lines = append(t.lines, l)
	return l
}

// put writes a row's metrics at place i of the line's cells.
func (l *line) put(t *table, r *row, i int) {
	for _, unit := range r.units {
		t.units = appendNew(t.units, unit)
		for len(l.cells[unit]) <= i {
			l.cells[unit] = append(l.cells[unit], "")
		}
		l.cells[unit][i] = number(median(r.values[unit]))
	}
}

// write writes the table as Markdown.
func (t *table) write(b *strings.Builder) {
	if name := t.across[0].name; name != "" {
		var values []string
		for _, l := range t.across {
			values = append(values, cellText(l.value))
		}
		fmt.Fprintf(b, "Several numbers in a cell: %s = %s.\n\n", name, strings.Join(values, " / "))
	}
	var head, rule []string
	for _, name := range t.names {
		head, rule = append(head, name), append(rule, "---")
	}
	if len(t.names) == 0 {
		head, rule = append(head, ""), append(rule, "---")
	}
	for _, unit := range t.units {
		head, rule = append(head, unit), append(rule, "---:")
	}
	writeLine(b, head)
	writeLine(b, rule)
	for _, l := range t.lines {
		var cells []string
		for _, name := range t.names {
			cells = append(cells, cellText(l.labels[name]))
		}
		if len(t.names) == 0 {
			cells = append(cells, "")
		}
		for _, unit := range t.units {
			cells = append(cells, t.cell(l.cells[unit]))
		}
		writeLine(b, cells)
	}
}

func writeLine(b *strings.Builder, cells []string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}

// cellText returns the text of a cell, escaped.
func cellText(text string) string {
	if text == "" {
		return missing
	}
	return strings.ReplaceAll(text, "|", "\\|")
}

// cell returns the numbers of one cell, or one number if all are equal.
func (t *table) cell(numbers []string) string {
	for len(numbers) < len(t.across) {
		numbers = append(numbers, "")
	}
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = cellText(n)
	}
	if len(slices.Compact(slices.Clone(texts))) == 1 {
		return texts[0]
	}
	return strings.Join(texts, " / ")
}

// median returns the median of values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[half-1] + sorted[half]) / 2
	}
	return sorted[half]
}

// number returns v with three significant digits, or all before the point, and without trailing zeros.
func number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	digits := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	text := strconv.FormatFloat(v, 'f', digits, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
		return whole + "." + fraction
	}
	return whole
}
