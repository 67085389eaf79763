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
	if !strings.Contains(r.text, file+" differs") || !strings.Contains(r.text, "<a>old") ||
		!strings.Contains(r.text, "<a>new") {
		t.Errorf("the test fails with %q", r.text)
	}
}
