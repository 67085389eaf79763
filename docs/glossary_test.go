package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// A Go identifier with its package, and members of it: `policy.Key.Shared`.
	goIdentifier = regexp.MustCompile("`([a-z]+(?:\\.[A-Z]\\w*)+)`")
	// A folder of a package.
	goFolder = regexp.MustCompile("`(plugin/[a-z/]+)`")
)

// declared has what the packages of the module declare, by package name and identifier, with fields and methods of
// types: "policy.Key.Shared". embedded has the types that a struct embeds.
type declared struct {
	names    map[string]bool
	embedded map[string][]string
}

// has reports whether an identifier is declared, or promoted from an embedded type.
func (d *declared) has(name string) bool {
	if d.names[name] {
		return true
	}
	owner, member := name[:strings.LastIndex(name, ".")], name[strings.LastIndex(name, "."):]
	for _, embedded := range d.embedded[owner] {
		if d.has(embedded + member) {
			return true
		}
	}
	return false
}

// add records the declarations of a file.
func (d *declared) add(file *ast.File) {
	prefix := file.Name.Name + "."
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Recv == nil {
				d.names[prefix+decl.Name.Name] = true
			} else {
				d.names[typeName(prefix, decl.Recv.List[0].Type)+"."+decl.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.addSpec(prefix, spec)
			}
		}
	}
}

func (d *declared) addSpec(prefix string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			d.names[prefix+name.Name] = true
		}
	case *ast.TypeSpec:
		owner := prefix + spec.Name.Name
		d.names[owner] = true
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			return
		}
		for _, field := range fields.Fields.List {
			for _, name := range field.Names {
				d.names[owner+"."+name.Name] = true
			}
			if field.Names == nil {
				d.embedded[owner] = append(d.embedded[owner], typeName(prefix, field.Type))
			}
		}
	}
}

// typeName returns the name of a type with its package; prefix is that of an unqualified name.
func typeName(prefix string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(prefix, e.X)
	case *ast.IndexExpr:
		return typeName(prefix, e.X)
	case *ast.SelectorExpr:
		return e.X.(*ast.Ident).Name + "." + e.Sel.Name
	case *ast.Ident:
		return prefix + e.Name
	}
	return ""
}

// declarations parses the packages of the module that a page may name.
func declarations(t *testing.T) *declared {
	t.Helper()
	d := &declared{names: map[string]bool{}, embedded: map[string][]string{}}
	for _, folder := range []string{"../plugin", "../schema"} {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				d.add(file)
			}
			return err
		})
		require.NoError(t, err)
	}
	return d
}

func TestEveryGoIdentifierOfTheGlossaryExists(t *testing.T) {
	page, err := os.ReadFile("glossary.md")
	require.NoError(t, err)
	d := declarations(t)
	identifiers := goIdentifier.FindAllStringSubmatch(string(page), -1)
	if len(identifiers) < 30 {
		t.Fatalf("found %d identifiers, want those of the tables", len(identifiers))
	}
	for _, match := range identifiers {
		if !d.has(match[1]) {
			t.Errorf("%s is declared nowhere", match[1])
		}
	}
	for _, match := range goFolder.FindAllStringSubmatch(string(page), -1) {
		if _, err := os.Stat(filepath.Join("..", match[1])); err != nil {
			t.Error(err)
		}
	}
}
