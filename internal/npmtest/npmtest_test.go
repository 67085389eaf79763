package npmtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFolderWithoutALockFileIsNotInstalled(t *testing.T) {
	if _, err := install(t.TempDir()); err == nil || !strings.Contains(err.Error(), "package.json") {
		t.Errorf("error %v", err)
	}
}

func TestAFailedInstallationLeavesNothingBehind(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("INSTALL_MISSING", "1")
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := t.TempDir()
	for file, text := range map[string]string{"package.json": `{"name":"a"}`, "package-lock.json": `{`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	if _, err := install(dir); err == nil || !strings.Contains(err.Error(), "npm ci") {
		t.Errorf("error %v", err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "npm-for-tests", "*"))
	if err != nil || len(left) != 1 || !strings.HasSuffix(left[0], ".lock") {
		t.Errorf("left %q, %v", left, err)
	}
}

func TestPackagesOfAnEmptyLockFileAreInstalledOnce(t *testing.T) {
	t.Setenv("INSTALL_MISSING", "1")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	lock := `{"name":"a","lockfileVersion":3,"packages":{"":{"name":"a"}}}`
	for file, text := range map[string]string{"package.json": `{"name":"a"}`, "package-lock.json": lock} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	first := Modules(t, dir)
	mark := filepath.Join(first, "mark")
	require.NoError(t, os.WriteFile(mark, nil, 0o600))
	if second := Modules(t, dir); second != first {
		t.Errorf("folders %s and %s", first, second)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error(err)
	}
}
