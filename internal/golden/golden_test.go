package golden_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

func TestADiffShowsTheChangesWithTheLinesAroundThem(t *testing.T) {
	var lines []string
	for i := range 40 {
		lines = append(lines, fmt.Sprint("line ", i+1))
	}
	want := strings.Join(lines, "\n")
	lines[9], lines[29] = "another", "line 30\nmore"
	const diff = `from line 7:
 line 7
 line 8
 line 9
-line 10
+another
 line 11
 line 12
 line 13
…
 line 28
 line 29
 line 30
+more
 line 31
 line 32
 line 33
…`
	if got := golden.Diff(want, strings.Join(lines, "\n")); got != diff {
		t.Errorf("the diff is\n%s", got)
	}
}

func TestADiffOfLongTextsIsBounded(t *testing.T) {
	got := golden.Diff(strings.Repeat("a\n", 100_000), strings.Repeat("b\n", 100_000))
	if lines := strings.Count(got, "\n"); lines > 1000 {
		t.Errorf("the diff has %d lines", lines)
	}
}

// recorder is a test that fails.
type recorder struct {
	testing.TB
	text string
}

func (r *recorder) Helper()                        {}
func (r *recorder) Errorf(format string, a ...any) { r.text += fmt.Sprintf(format, a...) }

func TestAFileThatDiffersFailsTheTestWithTheDiffAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("head\n<a>old\n<b>\ntail\n"), 0o600))
	if golden.Update() {
		return // it would rewrite the file
	}
	r := &recorder{TB: t}
	golden.CheckSection(r, file, "<a>", "<b>", "old\n")
	if r.text != "" {
		t.Errorf("an equal section fails: %s", r.text)
	}
	golden.CheckSection(r, file, "<a>", "<b>", "new\n")
	if !strings.Contains(r.text, file+" differs") || !strings.Contains(r.text, "-<a>old\n+<a>new\n") {
		t.Errorf("the test fails with %q", r.text)
	}
}
