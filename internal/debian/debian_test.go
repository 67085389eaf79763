package debian

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeAptGet puts a program in the place of apt-get. It notes its calls in the file that it returns.
func fakeAptGet(t *testing.T, script string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	script = "#!/bin/sh\necho \"$1\" >>" + calls + "\n" + script + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o700))
	t.Setenv("INSTALL_MISSING", "1")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	return calls
}

func TestNothingIsInstalledUnlessTheEnvironmentAsks(t *testing.T) {
	calls := fakeAptGet(t, "")
	t.Setenv("INSTALL_MISSING", "")
	_, err := Find("no-such-package", func() (string, error) { return "", errors.New("not found") })
	const want = "the package no-such-package is missing: install it, or set INSTALL_MISSING=1 as make test does"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if text, err := os.ReadFile(calls); err == nil {
		t.Errorf("apt-get was called with %s", text)
	}
}

func TestListsOfPackagesAreReadAnewOnlyIfAnInstallationFails(t *testing.T) {
	for script, want := range map[string]string{
		"": "install\n",
		`[ "$1" = update ] && touch "$0.lists"; [ -e "$0.lists" ]`: "install\nupdate\ninstall\n",
	} {
		calls := fakeAptGet(t, script)
		_, err := Find("tool", func() (string, error) {
			text, err := os.ReadFile(calls)
			if err == nil && string(text) != want {
				err = fmt.Errorf("apt-get was called with\n%s", text)
			}
			return "", err
		})
		if err != nil {
			t.Errorf("with %q: %v, want\n%s", script, err, want)
		}
	}
}

func TestAFailedInstallationNamesTheCommand(t *testing.T) {
	fakeAptGet(t, "exit 1")
	missing := errors.New("not found")
	_, err := Find("no-such-package-anywhere", func() (string, error) { return "", missing })
	if !errors.Is(err, missing) || !strings.Contains(err.Error(), "apt-get install no-such-package-anywhere") {
		t.Errorf("error %v", err)
	}
}
