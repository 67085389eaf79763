package main

import (
	"bytes"
	"fmt"
	"go/format"
	"slices"
	"strconv"
	"strings"
)

// optionTable renders the options as Markdown, one table for each record; a record that occurs more than once is
// described where it occurs first.
func optionTable(root *record) []byte {
	var b bytes.Buffer
	b.WriteString("<!-- generated from schema/config.go by go generate; do not edit -->\n")
	writeTable(&b, root, "config", map[string]bool{})
	return b.Bytes()
}

func writeTable(b *bytes.Buffer, r *record, path string, done map[string]bool) {
	done[r.name] = true
	fmt.Fprintf(b, "\n**`%s`**\n\n| option | type | default | meaning |\n|---|---|---|---|\n", path)
	for _, f := range r.fields {
		meaning, def := splitDefault(f.description)
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.name, typeText(f), cell(def), cell(meaning))
	}
	for _, f := range r.fields {
		inner, suffix := f.typ.record, ""
		if f.typ.kind == "array" {
			inner, suffix = f.typ.elem.record, "[]"
		}
		if inner != nil && !done[inner.name] {
			writeTable(b, inner, path+"."+f.name+suffix, done)
		}
	}
}

// splitDefault splits a description from its last sentence, which states the default or "Required.".
func splitDefault(description string) (meaning, def string) {
	if meaning, def, ok := strings.Cut(description, " Default: "); ok {
		return meaning, strings.TrimSuffix(def, ".")
	}
	if strings.Contains(description, "Required") {
		return description, "required"
	}
	return description, ""
}

func typeText(f field) string {
	text := f.typ.kind
	switch {
	case text == "array":
		text = "array of " + f.typ.elem.kind
	case text == "map":
		text = "map of " + f.typ.elem.kind
	}
	if slices.Contains(strings.Split(f.tags.Get("kong"), ","), "set") {
		text = strings.Replace(text, "array", "set", 1)
	}
	return text
}

// cell escapes characters that would end a table cell or start HTML.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}

// rowTypes lists the rows of the database that the package declares, and the records in them.
var rowTypes = []string{"Policy", "Override", "Tenant", "Cost", "Settle", "SettleSource", "Fair"}

// rowSchema returns the rows as records in the form of Kong's schema, by the names of their types.
func (s *source) rowSchema() ([]byte, error) {
	var all object
	for _, name := range rowTypes {
		r, err := s.record(name)
		if err != nil {
			return nil, err
		}
		row, err := s.kongRecord(r, "")
		if err != nil {
			return nil, err
		}
		all = append(all, member{name, row})
	}
	return indentedJSON(all)
}

// rowFields returns Go code that lists the fields of the rows: properties that the schema lacks, and a pointer to each.
func (s *source) rowFields() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(
		"// Code generated from the declarations in this package by go generate; DO NOT EDIT.\n\npackage schema\n",
	)
	for _, name := range rowTypes {
		r, err := s.record(name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "\nvar fieldsOf%s = []Field[%s]{\n", name, name)
		for _, f := range r.fields {
			fmt.Fprintf(&b, "\t{Name: %q", f.name)
			tags := [...][2]string{{"Flag", "flag"}, {"Aliases", "alias"}, {"Unit", "unit"}, {"Example", "example"}}
			for _, tag := range tags {
				if value, ok := f.tags.Lookup(tag[1]); ok {
					fmt.Fprintf(&b, ", %s: %s", tag[0], strconv.Quote(value))
				}
			}
			fmt.Fprintf(&b, ", in: func(row *%s) any { return &row.%s }},\n", name, f.goName)
		}
		b.WriteString("}\n")
	}
	code, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format the fields of rows: %w", err)
	}
	return code, nil
}
