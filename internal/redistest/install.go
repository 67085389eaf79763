package redistest

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const installation = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y -o DPkg::Lock::Timeout=120 "

// program is the path of redis-server.
var program = sync.OnceValues(func() (string, error) {
	return installed("redis-server", func() (string, error) { return exec.LookPath("redis-server") })
})

// faketime is the path of the library that turns a process's clock.
var faketime = sync.OnceValues(func() (string, error) {
	return installed("faketime", func() (string, error) {
		found, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
		if err == nil && len(found) == 0 {
			err = errors.New("libfaketime.so.1 is not under /usr/lib")
		}
		if err != nil {
			return "", err
		}
		return found[0], nil
	})
})

// installed is what look finds, after a Debian package is installed if need be and if this process may.
func installed(name string, look func() (string, error)) (string, error) {
	if path, err := look(); err == nil {
		return path, nil
	}
	output, err := exec.Command("sh", "-c", installation+name).CombinedOutput()
	if path, found := look(); found == nil {
		return path, nil
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return "", fmt.Errorf("%[1]s is missing and cannot be installed (%[2]w: %[3]s): apt-get install %[1]s", name, err, lines[len(lines)-1])
}

// find is the path of redis-server; without one the test fails.
func find(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
