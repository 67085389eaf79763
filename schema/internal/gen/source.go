package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// source is the parsed package: its struct types, and the directives above them.
type source struct {
	structs  map[string]*ast.StructType
	checks   map[string][]string // type name → the lines after //kong:check, in order
	patterns map[string]string   // name of a pattern list → the rest of its //kong:patterns line
}

// record is a struct type as Kong sees it.
type record struct {
	name   string
	checks []string
	fields []field
}

// field is one struct field: its names in Go and JSON, its description, its tags and its type.
type field struct {
	goName      string
	name        string
	description string
	tags        reflect.StructTag
	typ         fieldType
}

// fieldType is a Go type in Kong's terms; record is set where kind is "record", and elem where it is "array" or "map".
type fieldType struct {
	kind   string
	record *record
	elem   *fieldType
}

func readSource(dir string) (*source, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list Go files: %w", err)
	}
	s := &source{structs: map[string]*ast.StructType{}, checks: map[string][]string{}, patterns: map[string]string{}}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if err := s.readFile(name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *source) readFile(name string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read source: %w", err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse source: %w", err)
	}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			typeSpec := spec.(*ast.TypeSpec)
			if structType, ok := typeSpec.Type.(*ast.StructType); ok {
				s.structs[typeSpec.Name.Name] = structType
				s.readDirectives(typeSpec.Name.Name, gen.Doc)
			}
		}
	}
	return nil
}

func (s *source) readDirectives(typeName string, doc *ast.CommentGroup) {
	if doc == nil {
		return
	}
	for _, comment := range doc.List {
		if check, ok := strings.CutPrefix(comment.Text, "//kong:check "); ok {
			s.checks[typeName] = append(s.checks[typeName], check)
		}
		if patterns, ok := strings.CutPrefix(comment.Text, "//kong:patterns "); ok {
			name, list, _ := strings.Cut(patterns, " ")
			s.patterns[name] = list
		}
	}
}

// record resolves the struct type called name, and all struct types that it contains.
func (s *source) record(name string) (*record, error) {
	structType, ok := s.structs[name]
	if !ok {
		return nil, fmt.Errorf("no struct type %s in the source", name)
	}
	r := &record{name: name, checks: s.checks[name]}
	for _, astField := range structType.Fields.List {
		if len(astField.Names) == 0 {
			if err := s.embed(r, astField.Type); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			continue
		}
		f, err := s.field(astField)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.fields = append(r.fields, f)
	}
	return r, nil
}

// embed adds the fields and checks of an embedded struct to r: in JSON they are its own.
func (s *source) embed(r *record, expr ast.Expr) error {
	ident, ok := expr.(*ast.Ident)
	if !ok {
		return fmt.Errorf("only struct types of this package can be embedded, not %T", expr)
	}
	embedded, err := s.record(ident.Name)
	if err != nil {
		return err
	}
	for _, f := range embedded.fields {
		f.goName = ident.Name + "." + f.goName
		r.fields = append(r.fields, f)
	}
	r.checks = append(r.checks, embedded.checks...)
	return nil
}

func (s *source) field(astField *ast.Field) (field, error) {
	if len(astField.Names) != 1 || astField.Tag == nil {
		return field{}, fmt.Errorf("every field needs one name and a tag")
	}
	goName := astField.Names[0].Name
	tags := reflect.StructTag(strings.Trim(astField.Tag.Value, "`"))
	jsonName, _, _ := strings.Cut(tags.Get("json"), ",")
	if jsonName == "" {
		return field{}, fmt.Errorf("%s: no json name", goName)
	}
	description := firstParagraph(astField.Doc)
	if len(description) < 10 || len(description) > 500 {
		return field{}, fmt.Errorf("%s: the doc comment's first paragraph has %d characters, Kong wants 10 to 500",
			goName, len(description))
	}
	typ, err := s.fieldType(astField.Type)
	if err != nil {
		return field{}, fmt.Errorf("%s: %w", goName, err)
	}
	return field{goName: goName, name: jsonName, description: description, tags: tags, typ: *typ}, nil
}

func firstParagraph(doc *ast.CommentGroup) string {
	paragraph, _, _ := strings.Cut(doc.Text(), "\n\n")
	return strings.Join(strings.Fields(paragraph), " ")
}

var scalarKinds = map[string]string{"string": "string", "int64": "integer", "bool": "boolean"}

func (s *source) fieldType(expr ast.Expr) (*fieldType, error) {
	switch t := expr.(type) {
	case *ast.Ident:
		if kind, ok := scalarKinds[t.Name]; ok {
			return &fieldType{kind: kind}, nil
		}
		r, err := s.record(t.Name)
		return &fieldType{kind: "record", record: r}, err
	case *ast.SelectorExpr:
		if t.Sel.Name == "Time" { // of package time, which JSON writes as a text
			return &fieldType{kind: "string"}, nil
		}
	case *ast.StarExpr:
		return s.fieldType(t.X)
	case *ast.ArrayType:
		elem, err := s.fieldType(t.Elt)
		return &fieldType{kind: "array", elem: elem}, err
	case *ast.MapType:
		elem, err := s.fieldType(t.Value)
		return &fieldType{kind: "map", elem: elem}, err
	}
	return nil, fmt.Errorf("no type of Kong for %T", expr)
}
