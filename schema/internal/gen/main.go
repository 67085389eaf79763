// Command gen generates the Kong schema (kong_schema.json), that of rows (row_schema.json), and the option table in
// docs/configuration.md from the types of package schema, their tags, and their doc comments in the source.
//
// Package schema itself checks configs against the generated schema.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	schemaFile = "kong_schema.json"
	rowsFile   = "row_schema.json"
	docsFile   = "../docs/configuration.md"

	optionsStart = "<!-- options:start -->"
	optionsEnd   = "<!-- options:end -->"
)

// recordTypes lists the rows of the database and the records in them; and those whose constraints rows take over.
var recordTypes = []reflect.Type{
	reflect.TypeFor[schema.Policy](), reflect.TypeFor[schema.Override](), reflect.TypeFor[schema.Tenant](),
	reflect.TypeFor[schema.Cost](), reflect.TypeFor[schema.Settle](), reflect.TypeFor[schema.SettleSource](),
	reflect.TypeFor[schema.Fair](), reflect.TypeFor[schema.Anchor](), reflect.TypeFor[schema.Match](),
	reflect.TypeFor[schema.DatedPrice](), reflect.TypeFor[schema.Limit](), reflect.TypeFor[schema.Exemption](),
	reflect.TypeFor[schema.ModelPrice](),
}

func main() {
	files, err := generate(".")
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(name, content, 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// generate returns the derived files by their path below the folder of package schema.
func generate(dir string) (map[string][]byte, error) {
	g, err := newGenerator(dir)
	if err != nil {
		return nil, err
	}
	page, err := os.ReadFile(filepath.Join(dir, docsFile))
	if err != nil {
		return nil, err
	}
	config := g.kongRecord(reflect.TypeFor[schema.Config](), "")
	var options strings.Builder
	options.WriteString("<!-- generated from schema/config.go by go generate; do not edit -->\n")
	writeTable(&options, config, "config", map[reflect.Type]bool{})
	docs, err := insertOptions(page, options.String())
	files := map[string][]byte{
		schemaFile: g.encode(kongSchema(config)), rowsFile: g.encode(g.rowSchema()), docsFile: docs,
	}
	return files, errors.Join(append(g.faults, err)...)
}

type generator struct {
	docs     map[string]string            // the first paragraph of the doc comment of each TYPE.FIELD
	checks   map[string][]json.RawMessage // by type: what follows //kong:check, an entity check in Kong's form
	patterns map[string]json.RawMessage   // by name: what follows //kong:patterns NAME, a match_any in Kong's form
	at       string                       // the TYPE.FIELD that is being read
	faults   []error
}

func (g *generator) fault(format string, args ...any) {
	g.faults = append(g.faults, fmt.Errorf("%s: %w", g.at, fmt.Errorf(format, args...)))
}

func newGenerator(dir string) (*generator, error) {
	g := &generator{
		docs: map[string]string{}, checks: map[string][]json.RawMessage{}, patterns: map[string]json.RawMessage{},
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range names {
		file, parseErr := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if parseErr != nil {
			return nil, parseErr
		}
		for _, decl := range file.Decls {
			if types, ok := decl.(*ast.GenDecl); ok && types.Tok == token.TYPE {
				g.readType(types)
			}
		}
	}
	return g, err
}

func (g *generator) readType(decl *ast.GenDecl) {
	spec := decl.Specs[0].(*ast.TypeSpec)
	structType, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	g.at = spec.Name.Name
	if decl.Doc != nil {
		for _, comment := range decl.Doc.List {
			if check, ok := strings.CutPrefix(comment.Text, "//kong:check "); ok {
				g.checks[spec.Name.Name] = append(g.checks[spec.Name.Name], g.directive(check))
			}
			if patterns, ok := strings.CutPrefix(comment.Text, "//kong:patterns "); ok {
				name, list, _ := strings.Cut(patterns, " ")
				g.patterns[name] = g.directive(list)
			}
		}
	}
	for _, f := range structType.Fields.List {
		paragraph, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
		for _, name := range f.Names {
			g.docs[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(paragraph), " ")
		}
	}
}

// directive checks the JSON of a directive. Kong passes its message to string.format.
func (g *generator) directive(text string) json.RawMessage {
	switch {
	case !json.Valid([]byte(text)):
		g.fault("//kong: %s is not JSON", text)
		return nil
	case strings.Contains(text, "%"):
		g.fault("//kong: a percent sign would be taken for a format by Kong")
	}
	return json.RawMessage(text)
}

// kongSchema returns the schema of the plugin, by that of its config.
func kongSchema(config *kongField) any {
	type object map[string]any
	yes, protocols := true, []string{"grpc", "grpcs", "http", "https"}
	return struct {
		Name   string   `json:"name"`
		Fields []object `json:"fields"`
	}{schema.Name, []object{
		{"protocols": kongField{
			Type: "set", Required: &yes, Default: protocols, Elements: &kongField{Type: "string", OneOf: protocols},
			Description: "The protocols of the requests that the plugin may run for. Default: all that it supports.",
		}},
		{"config": struct {
			*kongField

			Required bool `json:"required"`
		}{config, true}},
	}}
}

func (g *generator) rowSchema() any {
	var rows struct{ Policy, Override, Tenant, Cost, Settle, SettleSource, Fair, Anchor, Match, DatedPrice *kongField }
	into := reflect.ValueOf(&rows).Elem()
	for i := range into.NumField() {
		into.Field(i).Set(reflect.ValueOf(g.kongRecord(recordTypes[i], "")))
	}
	return rows
}

func (g *generator) encode(document any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(document); err != nil {
		g.faults = append(g.faults, err)
	}
	return b.Bytes()
}

// insertOptions puts options between the markers of page.
func insertOptions(page []byte, options string) ([]byte, error) {
	head, rest, hasStart := strings.Cut(string(page), optionsStart)
	_, tail, hasEnd := strings.Cut(rest, optionsEnd)
	if !hasStart || !hasEnd {
		return nil, fmt.Errorf("%s has no %s with %s behind it", docsFile, optionsStart, optionsEnd)
	}
	return []byte(head + optionsStart + "\n\n" + options + "\n" + optionsEnd + tail), nil
}
