package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFaultyDecKFileIsNotExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kong.yml")
	if err := os.WriteFile(file, []byte("plugins: [{name: tenant-rate-limiting, config: {mode: enforced, strategy: disk}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t}
	code := x.call("explain", "--config", file, "--config-only", "--tenant", "acme")
	if said := x.output.String(); code != exitFailed || strings.Count(said, "\n") != 2 || !strings.Contains(said, "plugins[0].config.mode") {
		t.Errorf("exit code %d, want 1 and a line for each of two faults; said\n%s", code, said)
	}
}

func TestAStrangerIsExplainedAsTheConfigCountsIt(t *testing.T) {
	x := &terminal{t: t}
	code := x.call("explain", "--config", "testdata/ratelimit/buckets.yml", "--config-only")
	if said := x.output.String(); code != 0 || !strings.Contains(said, "no tenant, tier essentials") || !strings.Contains(said, "4 limits apply") {
		t.Errorf("exit code %d, said\n%s", code, said)
	}
}
