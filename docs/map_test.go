package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMapListsEveryPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	pages, err := filepath.Glob("*.md")
	require.NoError(t, err)
	for _, page := range pages {
		if page != "README.md" && !strings.Contains(string(text), "]("+page+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}
