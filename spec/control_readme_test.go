package spec

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// readmeLines are the lines for a shell in a section of the README.
func readmeLines(t *testing.T, section string) string {
	t.Helper()
	_, text, found := strings.Cut(file(t, "README.md"), "\n## "+section+"\n")
	if !found {
		t.Fatalf("the README has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var lines strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1) {
		lines.WriteString(block[1])
	}
	return lines.String()
}

func TestTheLinesOfTheREADMEThatControlItWork(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.operate("token", "revoke", "ann", "--reason", "the lines make their own")
	lines := readmeLines(t, "Control it")
	address, dir := freeport.Address(t), t.TempDir()
	for from, to := range map[string]string{"=postgres://…": "='" + p.dsn + "'", "127.0.0.1:8090": address} {
		if !strings.Contains(lines, from) {
			t.Fatalf("no %s in the lines\n%s", from, lines)
		}
		lines = strings.ReplaceAll(lines, from, to)
	}
	config := strings.Replace(file(t, "kong/kong.yml"), "strategy: local", "strategy: redis\n      redis: {host: 127.0.0.1, port: "+strconv.Itoa(p.redis.Port)+"}", 1)
	if err := os.WriteFile(filepath.Join(dir, "kong.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binaries, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	p.node("kong", p.dsn)
	shell := exec.Command("bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p); wait' EXIT\nset -x\n"+lines)
	shell.Dir = dir
	shell.Env = append(os.Environ(), "RATELIMIT_LISTEN="+address, "RATELIMIT_METRICS_LISTEN=off", "RATELIMIT_DRAIN_TIME=10ms", "RATELIMIT_LOG_LEVEL=warn")
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for text, times := range map[string]int{
		`"enforced":true`: 4, `"enforced":false`: 0, `"allowed":true`: 2, `"limit":1200`: 1, `"preview":true`: 1, "revoked token ann": 1,
	} {
		if n := strings.Count(answersOf(string(out)), text); n < times || times == 0 && n > 0 {
			t.Errorf("%d times %s, want %d\n%s", n, text, times, out)
		}
	}
}

// answersOf is what the lines of a shell said, without the lines.
func answersOf(out string) string {
	return regexp.MustCompile(`(?m)^\++ .*$`).ReplaceAllString(out, "")
}
