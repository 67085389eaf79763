package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// collapsed matches what is left of a table in prose: its second line, a line that begins with a bar, or a bar between
// words.
var collapsed = regexp.MustCompile(`\|\s*:?-{3,}|(?m:^\|)| \| `)

// tableFaults returns the tables of a page that a reader does not see as such, each by its first words.
func tableFaults(page []byte) (faults []string) {
	root := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(page))
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Paragraph, *ast.TextBlock, *ast.Heading:
			if prose := proseOf(n, page); collapsed.MatchString(prose) {
				faults = append(faults, "a table became prose: "+firstWords(string(n.Lines().Value(page))))
			}
		case *tables.Table:
			faults = append(faults, rowFaults(n, page)...)
		}
		return ast.WalkContinue, nil
	}) // the function returns no error
	return faults
}

// proseOf returns the text of a block without its code.
func proseOf(block ast.Node, page []byte) string {
	var b strings.Builder
	for n := block.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(page))
			if n.SoftLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.CodeSpan:
			b.WriteString("code")
		default:
			b.WriteString(proseOf(n, page))
		}
	}
	return b.String()
}

// bar matches what ends a cell: a bar that is not escaped, also within code.
var bar = regexp.MustCompile(`(^|[^\\])\|`)

// rowFaults returns the rows of a table that have other cells than its head: a bar that is not escaped ends a cell, and
// cells beyond the head are not shown.
func rowFaults(table *tables.Table, page []byte) (faults []string) {
	for row := table.FirstChild(); row != nil; row = row.NextSibling() {
		line := strings.TrimSpace(lineAt(page, row.Pos()))
		if n := len(bar.FindAllString(line, -1)) - 1; n != len(table.Alignments) {
			faults = append(faults, "a row has another number of cells than its table: "+firstWords(line))
		}
	}
	return faults
}

// lineAt returns the line of a page that has an offset.
func lineAt(page []byte, at int) string {
	start := strings.LastIndexByte(string(page[:at]), '\n') + 1
	line, _, _ := strings.Cut(string(page[start:]), "\n")
	return line
}

func firstWords(line string) string {
	const most = 80
	return strings.ToValidUTF8(line[:min(len(line), most)], "")
}

func TestATableThatIsNotShownAsOneIsFound(t *testing.T) {
	for page, want := range map[string]int{
		"| a | b |\n|---|---|\n| 1 | `x \\| y` |\n\nprose with `a | b` in code\n": 0,
		"- item\n\n  | a | b | |---|---| | 1 | 2 |\n":                             1,
		"prose\n| 1 | 2 |\n":                           1,
		"| a | b |\n|---|---|\n| 1 | `x | y` |\n":      1,
		"| a | b |\n|---|---|\n| 1 |\n":                1,
		"```\n| 1 | 2 |\n```\n":                        0,
		"| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n": 0,
	} {
		if got := tableFaults([]byte(page)); len(got) != want {
			t.Errorf("%q has the faults %q, want %d", page, got, want)
		}
	}
}

func TestEveryTableIsShownAsOne(t *testing.T) {
	pages := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		pages++
		page, err := os.ReadFile(path)
		for _, fault := range tableFaults(page) {
			t.Errorf("%s: %s", path, fault)
		}
		return err
	})
	if err != nil || pages < 20 {
		t.Errorf("read %d pages: %v", pages, err)
	}
}
