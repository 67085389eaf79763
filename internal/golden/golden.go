// Package golden compares texts with files, which go test -update rewrites. It shows a difference as a diff.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Update reports whether the test rewrites its files.
func Update() bool { return *update }

// Check fails the test unless the file has the text got. With -update it writes the file first.
func Check(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: go test -update writes the file", err)
	}
	if got != string(want) {
		t.Errorf("%s differs: if the change is meant, go test -update rewrites the file\n%s",
			file, cmp.Diff(string(want), got))
	}
}

// CheckSection is Check for what the file has between two marks.
func CheckSection(t testing.TB, file, start, end, got string) {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, started := strings.Cut(string(page), start)
	_, tail, ended := strings.Cut(rest, end)
	if !started || !ended {
		t.Fatalf("%s has no section between %q and %q", file, start, end)
	}
	Check(t, file, head+start+got+end+tail)
}
