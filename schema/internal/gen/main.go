// Command gen generates the Kong schema (kong_schema.json), the option table (options.md) and its copy in
// docs/configuration.md from the Config type of package schema. It reads the Go source, because the descriptions are
// doc comments, which reflection cannot read.
//
// Package schema itself checks configs against the generated schema.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	schemaFile  = "kong_schema.json"
	optionsFile = "options.md"
	rowsFile    = "row_schema.json"
	fieldsFile  = "row_fields.go"
	docsFile    = "../docs/configuration.md"

	optionsStart = "<!-- options:start -->"
	optionsEnd   = "<!-- options:end -->"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run regenerates every derived file of the schema folder dir.
func run(dir string) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("write generated file: %w", err)
		}
	}
	return nil
}

// generate returns the derived files by their path below dir. The page of docs is among them only if it exists and has
// the markers between which the option table goes.
func generate(dir string) (map[string][]byte, error) {
	source, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	root, err := source.record("Config")
	if err != nil {
		return nil, err
	}
	kong, err := kongSchema(source, root)
	if err != nil {
		return nil, err
	}
	rows, err := source.rowSchema()
	if err != nil {
		return nil, err
	}
	fields, err := source.rowFields()
	if err != nil {
		return nil, err
	}
	options := optionTable(root)
	files := map[string][]byte{schemaFile: kong, optionsFile: options, rowsFile: rows, fieldsFile: fields}
	page, err := os.ReadFile(filepath.Join(dir, docsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the page of options: %w", err)
	}
	if updated, ok := insertOptions(page, options); ok {
		files[docsFile] = updated
	}
	return files, nil
}

// insertOptions puts options between the markers of page; false means that it has no markers.
func insertOptions(page, options []byte) ([]byte, bool) {
	head, rest, ok := bytes.Cut(page, []byte(optionsStart))
	if !ok {
		return nil, false
	}
	_, tail, ok := bytes.Cut(rest, []byte(optionsEnd))
	if !ok {
		return nil, false
	}
	return bytes.Join([][]byte{head, []byte(optionsStart + "\n\n"), options, []byte("\n" + optionsEnd), tail}, nil), true
}
