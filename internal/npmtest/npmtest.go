// Package npmtest installs packages of npm for tests that need their programs or scripts. The packages and their
// checksums are those of a package-lock.json in the folder of the test.
package npmtest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// Modules installs the packages of the package-lock.json in dir and returns the folder that holds node_modules. The
// packages stay in the user's cache, so that they are downloaded once. Scripts of the packages are not run. Modules
// installs, npm too, only if the environment asks for it, as package debian does.
func Modules(t testing.TB, dir string) string {
	t.Helper()
	folder, err := install(dir)
	require.NoErrorf(t, err, "install the npm packages of %s", dir)
	return folder
}

// Node returns the path of the program node.
func Node(t testing.TB) string {
	t.Helper()
	node, err := debian.Program("nodejs", "node")
	require.NoError(t, err)
	return node
}

// install returns the folder of the cache with the packages of dir. Processes that install the same packages wait for
// the first one. A folder appears under its name when it is complete.
func install(dir string) (folder string, err error) {
	root, sum, err := locate(dir)
	if err != nil {
		return "", err
	}
	unlock, err := debian.Lock(filepath.Join(root, sum+".lock"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	folder = filepath.Join(root, sum)
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	if err := debian.Asked("node_modules of " + dir); err != nil {
		return "", err
	}
	npm, err := debian.Program("npm", "npm")
	if err != nil {
		return "", err
	}
	partial, err := os.MkdirTemp(root, sum+".partial-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(partial)) }()
	if err := fill(npm, dir, partial); err != nil {
		return "", err
	}
	return folder, os.Rename(partial, folder)
}

// locate returns the folder of the cache, and the name in it of the packages of dir: a checksum of the files that npm
// reads.
func locate(dir string) (root, name string, err error) {
	hash := sha256.New()
	for _, file := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return "", "", err
		}
		hash.Write(text)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	root = filepath.Join(cache, "npm-for-tests")
	return root, hex.EncodeToString(hash.Sum(nil)[:16]), os.MkdirAll(root, 0o755)
}

// fill installs the packages of dir into an empty folder, next to a copy of the files of dir.
func fill(npm, dir, folder string) error {
	if err := os.CopyFS(folder, os.DirFS(dir)); err != nil {
		return err
	}
	cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir = folder
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w: %s", err, debian.LastLine(output))
	}
	return nil
}
