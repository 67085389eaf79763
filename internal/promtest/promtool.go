package promtest

import (
	"os/exec"
	"testing"
)

// Promtool runs promtool in a folder and returns all that it says. The error is that of the run: a finding of the
// tool, in most cases. Without a promtool the test fails.
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
