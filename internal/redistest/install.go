package redistest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/debian"
)

// program returns the path of redis-server.
var program = sync.OnceValues(func() (string, error) {
	return debian.Find("redis-server", func() (string, error) { return exec.LookPath("redis-server") })
})

// faketime returns the path of the library that changes the clock of a process.
var faketime = sync.OnceValues(func() (string, error) {
	return debian.Find("faketime", func() (string, error) {
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

// redisServer returns the path of redis-server, or fails the test.
func redisServer(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
