package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFaultyDecKFileIsNotExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kong.yml")
	const faulty = "plugins: [{name: tenant-rate-limiting, config: {mode: enforced, strategy: disk}}]"
	require.NoError(t, os.WriteFile(file, []byte(faulty), 0o600))
	x := &terminal{t: t}
	code := x.call("explain", "--config", file, "--config-only", "--tenant", "acme")
	if text := x.output.String(); code != exitFailed || strings.Count(text, "\n") != 2 ||
		!strings.Contains(text, "plugins[0].config.mode") {
		t.Errorf("exit code %d, want 1 and a line for each of two faults; output\n%s", code, text)
	}
}

func TestAnAnonymousRequestIsExplainedAsTheConfigCountsIt(t *testing.T) {
	x := &terminal{t: t}
	code := x.call("explain", "--config", "testdata/ratelimit/buckets.yml", "--config-only")
	if text := x.output.String(); code != 0 || !strings.Contains(text, "namespace  default\ntier       essentials\n") ||
		strings.Count(text, "leased ")+strings.Count(text, "exact ") != 4 {
		t.Errorf("exit code %d, output\n%s", code, text)
	}
}
