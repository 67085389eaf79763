package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strconv"
)

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
