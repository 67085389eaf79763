// Package golden compares texts with files, which go test -update rewrites. It shows a difference as a diff.
package golden

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kylelemons/godebug/diff"
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
		t.Errorf("%s differs: if the change is meant, go test -update rewrites the file\n%s", file, Diff(string(want), got))
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

const (
	around = 3   // equal lines that are shown before and after a change
	most   = 200 // lines of either text that are compared after the first difference
)

// Diff returns the lines that change, and some lines around them: "-" marks lines of want alone, "+" those of got.
func Diff(want, got string) string {
	old, changed := strings.Split(want, "\n"), strings.Split(got, "\n")
	same := 0
	for same < min(len(old), len(changed)) && old[same] == changed[same] {
		same++
	}
	start := max(same-around, 0)
	old, changed = old[start:min(start+most, len(old))], changed[start:min(start+most, len(changed))]
	var lines []string
	for _, chunk := range diff.DiffChunks(old, changed) {
		lines = signed(lines, "-", chunk.Deleted)
		lines = signed(lines, "+", chunk.Added)
		lines = signed(lines, " ", chunk.Equal)
	}
	shown := []string{fmt.Sprintf("from line %d:", start+1)}
	for i, line := range lines {
		switch near := lines[max(i-around, 0):min(i+around+1, len(lines))]; {
		case strings.Trim(firstBytes(near), " ") != "":
			shown = append(shown, line)
		case shown[len(shown)-1] != "…":
			shown = append(shown, "…")
		}
	}
	return strings.Join(shown, "\n")
}

func signed(to []string, sign string, lines []string) []string {
	for _, line := range lines {
		to = append(to, sign+line)
	}
	return to
}

// firstBytes returns the signs of lines.
func firstBytes(lines []string) string {
	var signs strings.Builder
	for _, line := range lines {
		signs.WriteByte(line[0])
	}
	return signs.String()
}
