package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheMapListsEveryPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if page != "README.md" && !strings.Contains(string(text), "]("+page+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}
