package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// fields are those of a JSON object, in their order. People read the same fields as programs, by the same names.
type fields []field

// field is a field of an object: its value is fields, []any, string, json.Number, bool or nil.
type field struct {
	name  string
	value any
}

// treeOf returns a value as its JSON has it.
func treeOf(value any) (any, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode the output: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return readTree(decoder), nil
}

// shownTree returns a value as people read it: as treeOf does, with money in dollars.
func shownTree(value any) (any, error) {
	tree, err := treeOf(value)
	return inDollars(tree, ""), err
}

// amounts are the fields that are in the unit of the object around them.
var amounts = strings.Fields("limit burst used remaining remaining_min cost capacity reserve reserve_max amount top_up")

// inDollars returns a tree with the amounts in dollars where an object, or one that it is a field of, has the unit usd.
// The unit is left out: the amounts have it.
func inDollars(tree any, unit string) any {
	switch v := tree.(type) {
	case []any:
		for i := range v {
			v[i] = inDollars(v[i], "")
		}
	case fields:
		if i := slices.IndexFunc(v, func(f field) bool { return f.name == "unit" && f.value == schema.UnitUSD }); i >= 0 {
			unit, v = schema.UnitUSD, slices.Delete(v, i, i+1)
		}
		for i := range v {
			number, isNumber := v[i].value.(json.Number)
			if n, err := number.Int64(); isNumber && err == nil && slices.Contains(amounts, v[i].name) {
				v[i].value = schema.Amount(n, unit)
			} else {
				v[i].value = inDollars(v[i].value, unit)
			}
		}
		return v
	}
	return tree
}

// readTree reads a value of a valid document.
func readTree(d *json.Decoder) any {
	token, _ := d.Token()
	switch token {
	case json.Delim('{'):
		object := fields{}
		for d.More() {
			name, _ := d.Token()
			object = append(object, field{fmt.Sprint(name), readTree(d)})
		}
		_, _ = d.Token()
		return object
	case json.Delim('['):
		list := []any{}
		for d.More() {
			list = append(list, readTree(d))
		}
		_, _ = d.Token()
		return list
	}
	return token
}

// show adds a value: its fields line by line, and a table for each list of objects.
func (p *page) show(value any) {
	tree, err := shownTree(value)
	if err != nil {
		p.err = err
		return
	}
	p.add("", tree)
}

// add adds a part of a value below its title; "": none.
func (p *page) add(title string, tree any) {
	if title != "" && p.text.Len() > 0 {
		p.gap()
	}
	if title != "" {
		p.line("%s:", title)
	}
	object, isObject := tree.(fields)
	if !isObject {
		list, _ := tree.([]any)
		p.addTable(new(table), list)
		return
	}
	var lines [][]string
	for _, f := range object {
		if !isNested(f.value) {
			lines = append(lines, []string{titleOf(f.name), cmp.Or(cellOf(f), "-")})
		}
	}
	new(grid).add(p, lines)
	for _, f := range object {
		if isNested(f.value) {
			p.add(strings.TrimSpace(title+" "+titleOf(f.name)), f.value)
		}
	}
}

// addTable adds rows to a page; of a whole list, that there are none.
func (p *page) addTable(t *table, rows []any) {
	if t.add(p, rows); len(t.columns) == 0 {
		p.line("none")
	}
}

// isNested reports whether a value has a part of a page to itself.
func isNested(value any) bool {
	list, _ := value.([]any)
	if len(list) > 0 {
		value = list[0]
	}
	object, _ := value.(fields)
	return len(object) > 0
}

func titleOf(name string) string { return strings.ReplaceAll(name, "_", " ") }

// cellOf returns a field in one line, marked if it stands out; "": it is empty.
func cellOf(f field) string {
	cell := plainText(valueText(f.value))
	if m, known := marks[f.name]; known && cell != "" && m.when(cell) {
		return string(m.mark) + cell + string(endMark)
	}
	return cell
}

// marks has the mark of the fields whose values may stand out, and of which values: red for a state that harms, yellow
// for one that is easily overlooked.
var marks = map[string]struct {
	mark rune
	when func(cell string) bool
}{
	"faults":    {redMark, isNot("")},
	"refused":   {redMark, isNot("")},
	"denied":    {redMark, isNot("0")},
	"live":      {redMark, isOneOf("no")},
	"kind":      {redMark, isOneOf(schema.KindBan)},
	"verdict":   {redMark, isOneOf("banned")},
	"threshold": {redMark, isOneOf("100")},
	"fraction":  {redMark, func(cell string) bool { return !strings.HasPrefix(cell, "0") }},
	"redis":     {redMark, func(cell string) bool { return strings.Contains(cell, "away since") }},
	"mode":      {yellowMark, isOneOf("shadow", "log")},
	"lag":       {yellowMark, isNot("0")},
}

func isNot(text string) func(string) bool { return func(cell string) bool { return cell != text } }

func isOneOf(texts ...string) func(string) bool {
	return func(cell string) bool { return slices.Contains(texts, cell) }
}

// valueText returns a value in words.
func valueText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case json.Number:
		return decimalText(v)
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return timeText(at)
		}
		return v
	case []any:
		return listText(v)
	case fields:
		var parts []string
		for _, f := range v {
			if text := valueText(f.value); text != "" {
				parts = append(parts, titleOf(f.name)+" "+text)
			}
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprint(value)
}

// decimalText returns a number with at most three decimals.
func decimalText(n json.Number) string {
	if !strings.ContainsAny(n.String(), ".eE") {
		return n.String()
	}
	decimal, _ := n.Float64()
	return strconv.FormatFloat(math.Round(decimal*1000)/1000, 'f', -1, 64)
}

func listText(list []any) string {
	separator, texts := ", ", make([]string, len(list))
	for i, item := range list {
		if _, isObject := item.(fields); isObject {
			separator = "; "
		}
		texts[i] = valueText(item)
	}
	return strings.Join(texts, separator)
}

// table is a table of objects, which may come in parts. Its columns are the fields that any of them has so far. The
// zero value is ready.
type table struct {
	columns []string
	grid    grid
}

// add adds rows, below the titles of the columns if these are new.
func (t *table) add(out *page, rows []any) {
	known, cells := len(t.columns), make([]map[string]string, len(rows))
	for i, row := range rows {
		cells[i] = t.cells(row)
	}
	var lines [][]string
	if len(t.columns) > known {
		t.grid = grid{}
		var titles []string
		for _, name := range t.columns {
			titles = append(titles, strings.ToUpper(titleOf(name)))
		}
		lines = append(lines, titles)
	}
	for _, row := range cells {
		line := make([]string, len(t.columns))
		for i, name := range t.columns {
			line[i] = cmp.Or(row[name], "-")
		}
		lines = append(lines, line)
	}
	t.grid.add(out, lines)
}

// cells returns the cells of a row by their columns, and adds the columns that are new behind their neighbors.
func (t *table) cells(row any) map[string]string {
	cells, at := map[string]string{}, 0
	for name, f := range flat("", row) {
		cell := cellOf(f)
		if cell == "" {
			continue
		}
		cells[name] = cell
		known := slices.Index(t.columns, name)
		if known < 0 {
			known = at
			t.columns = slices.Insert(t.columns, at, name)
		}
		at = known + 1
	}
	return cells
}

// flat yields the fields of a row, and those of objects in it, by their names in it.
func flat(path string, row any) iter.Seq2[string, field] {
	return func(yield func(string, field) bool) {
		object, _ := row.(fields)
		for _, f := range object {
			inner, isObject := f.value.(fields)
			if !isObject && !yield(path+f.name, f) {
				return
			}
			for name, f := range flat(path+f.name+" ", inner) {
				if !yield(name, f) {
					return
				}
			}
		}
	}
}

// listPart is how many rows of a long list are aligned together and written at once.
const listPart = 1000

// showRows writes rows while they come, so that a list of any length takes little memory. An error ends it: what has
// been written before is true, but not all.
func showRows[T any](c *call, rows iter.Seq2[T, error]) error {
	switch c.format {
	case formatJSON:
		return showJSON(c.stdout, rows)
	case formatYAML:
		return showYAML(c.stdout, rows)
	}
	var shown table
	var part []any
	write := func() error {
		var out page
		out.addTable(&shown, part)
		part = part[:0]
		return out.write(c.stdout)
	}
	for row, err := range rows {
		if err == nil && len(part) == listPart {
			err = write()
		}
		var tree any
		if err == nil {
			tree, err = shownTree(row)
		}
		if err != nil {
			return err
		}
		part = append(part, tree)
	}
	return write()
}
