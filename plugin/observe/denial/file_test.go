package denial

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contents are the files of a folder: their names, permissions and what is in them.
func contents(t *testing.T, folder string) string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	var all strings.Builder
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		line := strings.ReplaceAll(strings.TrimSuffix(string(text), "\n"), "\n", " ")
		fmt.Fprintf(&all, "%s %o %s\n", entry.Name(), info.Mode().Perm(), line)
	}
	return all.String()
}

// file is a sink in an empty folder, and a function that writes a batch of lines to it.
func file(t *testing.T, options FileOptions) (folder string, f *File, write func(lines ...string)) {
	t.Helper()
	folder = t.TempDir()
	options.Path = filepath.Join(folder, "denials")
	f = NewFile(options)
	t.Cleanup(func() {
		assert.NoError(t, f.Close())
	})
	return folder, f, func(lines ...string) {
		t.Helper()
		batch := make([]Line, len(lines))
		for i, line := range lines {
			batch[i].Text = []byte(line)
		}
		assert.NoError(t, f.Write(t.Context(), batch), "write %q", lines)
	}
}

func expect(t *testing.T, folder, want string) {
	t.Helper()
	assert.Equal(t, want, contents(t, folder))
}

func TestAFullFileIsRotatedAndTheOldestReplaced(t *testing.T) {
	folder, _, write := file(t, FileOptions{MaxBytes: 9, Keep: 2})
	write("a1", "a2")
	write("a3")
	expect(t, folder, "denials 600 a1 a2 a3\n")
	write("b1")
	expect(t, folder, "denials 600 b1\ndenials.1 600 a1 a2 a3\n")
	write("c1", "c2", "c3", "c4") // more than a file may have
	expect(t, folder, "denials 600 c1 c2 c3 c4\ndenials.1 600 b1\ndenials.2 600 a1 a2 a3\n")
	write("d1")
	expect(t, folder, "denials 600 d1\ndenials.1 600 c1 c2 c3 c4\ndenials.2 600 b1\n")
}

func TestTwoProcessesShareAFileThroughItsRotation(t *testing.T) {
	folder, old, write := file(t, FileOptions{MaxBytes: 6})
	write("a1")
	young := NewFile(old.options)
	for _, text := range []string{"b1", "b2"} { // the second finds the file full
		require.NoError(t, young.Write(t.Context(), []Line{{Text: []byte(text)}}))
	}
	write("a2")
	expect(t, folder, "denials 600 b2 a2\ndenials.1 600 a1 b1\n")
	assert.NoError(t, young.Close())
}

func TestAFileSurvivesWhatOthersDoToIt(t *testing.T) {
	folder, f, write := file(t, FileOptions{})
	path := filepath.Join(folder, "denials")
	write("a")
	require.NoError(t, os.Rename(path, path+"-moved"))
	write("b")
	expect(t, folder, "denials 600 b\ndenials-moved 600 a\n")
	require.NoError(t, os.Remove(path))
	write("c")
	assert.NoError(t, f.Close())
	write("d")
	expect(t, folder, "denials 600 c d\ndenials-moved 600 a\n")
}

func TestALineThatAnEndCutIsLeftAlone(t *testing.T) {
	folder, _, write := file(t, FileOptions{})
	require.NoError(t, os.WriteFile(filepath.Join(folder, "denials"), []byte("a\n{\"b"), 0o640))
	write("c")
	expect(t, folder, "denials 640 a {\"b c\n")
}

func TestAFileThatCannotBeOpenedOrRotatedIsAnError(t *testing.T) {
	folder, f, write := file(t, FileOptions{MaxBytes: 2, Keep: 1})
	line := []Line{{Text: []byte("b")}}
	write("a")
	// A folder that is not empty is in the way of the old file.
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "denials.1", "in the way"), 0o700))
	if err := f.Write(t.Context(), line); err == nil || !strings.Contains(err.Error(), "rotate the file") {
		t.Errorf("error is %v, want that of rotating", err)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(folder, "denials.1")))
	write("b")
	expect(t, folder, "denials 600 b\ndenials.1 600 a\n")
	missing := NewFile(FileOptions{Path: filepath.Join(folder, "no", "such", "folder")})
	err := missing.Write(t.Context(), line)
	assert.True(t, os.IsNotExist(errors.Unwrap(err)), "error is %v, want that of opening", err)
}
