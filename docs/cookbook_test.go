package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

const (
	examples     = "../kong/examples"
	recipesStart = "<!-- recipes:start: written by go test ./docs -update; do not edit -->\n"
	recipesEnd   = "<!-- recipes:end -->\n"
)

// recipe is an example. Its first comment is a title, an empty line and a text.
type recipe struct{ name, title, text, deck, session string }

func readRecipe(t *testing.T, path string) recipe {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	r := recipe{name: strings.TrimSuffix(filepath.Base(path), ".yml")}
	r.session = read(strings.TrimSuffix(path, ".yml") + ".session")
	comment, deck, _ := strings.Cut(read(path), "_format_version")
	r.deck = "_format_version" + deck
	title, text, found := strings.Cut(regexp.MustCompile(`(?m)^# ?`).ReplaceAllString(comment, ""), "\n\n")
	if !found || deck == "" {
		t.Fatalf("%s does not begin with a title, an empty line and a text", path)
	}
	r.title, r.text = title, strings.TrimSpace(text)
	return r
}

var pageName = regexp.MustCompile(`docs/([a-z-]+\.md)`)

// page returns the page of a recipe.
func (r *recipe) page(t *testing.T) string {
	t.Helper()
	var page strings.Builder
	fmt.Fprintf(&page, "<!-- written by go test ./docs -update from kong/examples; do not edit -->\n\n# %s\n\n%s\n\n",
		r.title, pageName.ReplaceAllString(r.text, "[$1](../$1)"))
	fmt.Fprintf(&page, "[%s.yml](../../kong/examples/%[1]s.yml):\n\n```yaml\n%s```\n\n", r.name, r.deck)
	session := r.session
	if command, rest, _ := strings.Cut(session, "\n\n"); strings.HasPrefix(command, "$ ratelimit import") {
		result, err := fromkong.Convert([]byte(r.deck), fromkong.Options{})
		require.NoError(t, err)
		session = rest
		fmt.Fprintf(&page, "`%s` makes of it:\n\n```yaml\n%s```\n\n", strings.TrimPrefix(command, "$ "), result.Text)
	}
	fmt.Fprintf(&page, "[Requests and their answers](README.md#how-to-read-a-page):\n\n```text\n%s```\n", session)
	return page.String()
}

// TestTheCookbookHasAPageOfEveryExample shows the examples. Their sessions run in package spec.
func TestTheCookbookHasAPageOfEveryExample(t *testing.T) {
	paths, err := filepath.Glob(examples + "/*.yml")
	require.NoError(t, err)
	table := "\n| recipe | |\n|---|---|\n"
	for _, path := range paths {
		r := readRecipe(t, path)
		golden.Check(t, "cookbook/"+r.name+".md", r.page(t))
		first, _, _ := strings.Cut(strings.ReplaceAll(r.text, "\n", " "), ". ")
		table += fmt.Sprintf("| [%s](%s.md) | %s |\n", r.title, r.name, strings.TrimSuffix(first, "."))
	}
	golden.CheckSection(t, "cookbook/README.md", recipesStart, recipesEnd, table+"\n")
	pages, err := filepath.Glob("cookbook/*.md")
	require.NoError(t, err)
	if len(pages) != len(paths)+1 {
		t.Errorf("docs/cookbook has %d pages, want one of each example and a README: %v", len(pages), pages)
	}
	if sessions, err := filepath.Glob(examples + "/*"); err != nil || len(sessions) != 2*len(paths) {
		t.Errorf("%s has %v, want a file and a session of each example", examples, sessions)
	}
}
