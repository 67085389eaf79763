package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

func TestErrorsReachTheLogFileAfterLogrotateHasMovedIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "plugin.log")
	n := start(t, deck(plentiful), serverWith("-metrics-listen", "off", "-log-file", path))
	n.want(times(2, 200), "/records", "apikey", "alice")
	pid := n.runningPID()
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	faulty, err := gateway.ParseConfig([]byte(deck(fmt.Sprintf(duplicate, "open"))))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Reload(faulty); err != nil {
		t.Fatal(err)
	}
	n.want(times(2, 200), "/records", "apikey", "alice")
	written := func() int {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), `"level":"ERROR"`)
	}
	await.That(t, "the new file has an error", func() bool {
		n.want([]int{200}, "/records", "apikey", "alice")
		return written() > 0
	})
	if got := n.PluginPID(); got != pid {
		t.Errorf("SIGHUP ended the process: %d, then %d", pid, got)
	}
}
