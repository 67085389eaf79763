package spec

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// orphan is a plugin server whose parent can be killed, like Kong's worker 0 in a crash.
type orphan struct {
	worker *exec.Cmd
	lines  chan string // of its log; closed when the process has ended
}

// startOrphan starts a plugin server with a parent of its own.
func startOrphan(t *testing.T, prefix string) *orphan {
	t.Helper()
	o := &orphan{
		worker: exec.Command("/bin/sh", "-c", `env -i "$0" -metrics-listen off -kong-prefix "$1" & wait`, plugin(), prefix),
		lines:  make(chan string, 1000),
	}
	stderr, err := o.worker.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, o.worker.Start())
	go func() {
		defer close(o.lines)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			o.lines <- lines.Text()
		}
	}()
	o.await(t, "serving Kong")
	return o
}

// await waits for a line of the log, or with "" for the end of the process.
func (o *orphan) await(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		select {
		case line, ok := <-o.lines:
			switch {
			case !ok && part == "":
				return
			case !ok:
				t.Fatalf("the process ended before it logged %q", part)
			case part != "" && strings.Contains(line, part):
				return
			}
		case <-deadline:
			t.Fatalf("never: %q in the log", part)
		}
	}
}

// crash kills the parent.
func (o *orphan) crash(t *testing.T) {
	t.Helper()
	require.NoError(t, o.worker.Process.Signal(syscall.SIGKILL))
	if _, err := o.worker.Process.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestAPluginWhoseWorkerWasKilledServesTheOtherWorkersAndEndsAfterThem(t *testing.T) {
	t.Parallel()
	prefix := shortDir(t)
	first := startOrphan(t, prefix)
	n := start(t, deck(plentiful), func(o *gateway.Options) {
		o.Servers = []gateway.PluginServer{{
			Info:   pluginInfo(t),
			Socket: filepath.Join(prefix, "tenant-rate-limiting.socket"),
		}}
	})
	n.want(times(4, 200), "/records", "apikey", "alice")
	first.crash(t)
	second := startPlugin(t, prefix) // as the worker that replaces the killed one does
	n.want(times(20, 200), "/records", "apikey", "alice")
	require.NoError(t, n.Close())
	first.await(t, "shutting down")
	first.await(t, "")
	second.terminate()
}
