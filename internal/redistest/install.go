package redistest

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

const installation = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y -o DPkg::Lock::Timeout=120 redis-server"

// program is the path of redis-server.
var program = sync.OnceValues(func() (string, error) {
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
	}
	output, err := exec.Command("sh", "-c", installation).CombinedOutput()
	if path, found := exec.LookPath("redis-server"); found == nil {
		return path, nil
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return "", fmt.Errorf("redis-server is missing and cannot be installed (%w: %s): apt-get install redis-server", err, lines[len(lines)-1])
})

// find is the path of redis-server; without one the test fails.
func find(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
