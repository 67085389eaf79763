package promtest

import (
	"os/exec"
	"testing"
)

// Promtool runs promtool in a folder and returns its output. It returns an error if promtool finds a fault. Without
// promtool the test fails.
func Promtool(t testing.TB, dir string, args ...string) (output string, err error) {
	t.Helper()
	paths, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), paths.promtool, args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	return string(text), err
}
