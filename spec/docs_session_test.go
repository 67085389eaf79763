package spec

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
)

// shown is a command in the docs: a block of sh, or one command of a console with its output.
type shown struct {
	section string
	lines   string
	output  []string // with … for variable parts; nil: none is shown
	console bool
}

var blocks = regexp.MustCompile("(?sm)^```(sh|console)\n(.*?)^```$")

// shownIn returns the commands of a page of the docs, or of a section (page#section), in their order.
func shownIn(t *testing.T, section string) []shown {
	t.Helper()
	page, heading, part := strings.Cut(section, "#")
	text := file(t, page)
	if part {
		var found bool
		if _, text, found = strings.Cut(text, "\n## "+heading+"\n"); !found {
			t.Fatalf("%s has no section %q", page, heading)
		}
		text, _, _ = strings.Cut(text, "\n## ")
	}
	var all []shown
	for _, block := range blocks.FindAllStringSubmatch(text, -1) {
		if block[1] == "sh" {
			all = append(all, shown{section: section, lines: block[2]})
			continue
		}
		for line := range strings.Lines(block[2]) {
			if command, isCommand := strings.CutPrefix(line, "$ "); isCommand {
				all = append(all, shown{section: section, lines: command, console: true})
				continue
			}
			last := &all[len(all)-1]
			last.output = append(last.output, strings.TrimRight(line, "\n"))
		}
	}
	if all == nil {
		t.Fatalf("the section %q has no commands", section)
	}
	return all
}

// fits reports whether an output equals that of the docs. … matches any text in a line, and alone in a line any lines.
func (s shown) fits(output string) bool {
	var pattern strings.Builder
	pattern.WriteString("^")
	for _, line := range s.output {
		if line == "…" {
			pattern.WriteString(`(.*\n)*`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".+") + `\n`)
	}
	pattern.WriteString("$")
	return regexp.MustCompile(pattern.String()).MatchString(output)
}

// step is the line that the session prints before each command.
const step = "@@ step"

// session returns the lines of a shell script that runs all commands in their order. A failure ends it.
func session(all []shown) string {
	var lines strings.Builder
	lines.WriteString("set -euo pipefail\nmake() { command make -o build \"$@\"; }\n")
	for _, s := range all {
		fmt.Fprintf(&lines, "echo '%s'\n", step)
		if s.console {
			lines.WriteString("set +e\n" + s.lines + "status=$?; set -e; (exit $status)\n")
			continue
		}
		lines.WriteString("set -x\n" + s.lines + "{ set +x; } 2>/dev/null\n")
	}
	return lines.String()
}

// workFolder returns a folder with the sources and the programs, as after make build.
func workFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	patiently := fmt.Sprintf("#!/bin/sh\nexec '%s' %s \"$@\"\n", plugin(), strings.Join(patient, " "))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bin/tenant-rate-limiting"), []byte(patiently), 0o755))
	links := map[string]string{
		"bin/ratelimit":    filepath.Join(binaries, "ratelimit"),
		"bin/demo-gateway": filepath.Join(binaries, "demo-gateway"),
		"kong":             "../kong",
		"Makefile":         "../Makefile",
	}
	for name, target := range links {
		target, err := filepath.Abs(target)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return dir
}

// sessionPages lists the pages, or sections of pages, whose commands run as one session.
var sessionPages = []string{
	"README.md#Ten lines of decK", "docs/policies.md", "docs/llm-budgets.md", "docs/plans.md", "docs/control-api.md",
	"docs/usage.md", "docs/metrics.md", "docs/abuse.md", "docs/webhooks.md", "docs/migrating-from-kong.md",
	"docs/rollout.md", "docs/replay.md",
}

func TestTheCommandsOfTheDocsRunAsOneSession(t *testing.T) {
	t.Parallel()
	var all []shown
	for _, section := range sessionPages {
		all = append(all, shownIn(t, section)...)
	}
	const documented = "127.0.0.1:8090"
	lines, api, dir := session(all), freeport.Address(t), workFolder(t)
	if !strings.Contains(lines, documented) {
		t.Fatalf("no %s in the lines\n%s", documented, lines)
	}
	run := func(lines string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*longest)
		defer cancel()
		shell := exec.CommandContext(ctx, "bash", "-c", lines)
		shell.Cancel = func() error { return shell.Process.Signal(syscall.SIGTERM) } // ends what it has started
		shell.WaitDelay = time.Minute
		shell.Dir = dir
		shell.Env = append(os.Environ(),
			"LISTEN=127.0.0.1:0", "METRICS_LISTEN="+freeport.Address(t), "RATELIMIT_LISTEN="+api,
			"RATELIMIT_METRICS_LISTEN=off", "RATELIMIT_DRAIN_TIME=10ms", "RATELIMIT_LOG_LEVEL=warn")
		out, err := shell.CombinedOutput()
		return string(out), err
	}
	t.Cleanup(func() {
		if out, err := run("make -o build playground-stop"); err != nil {
			t.Errorf("make playground-stop: %v\n%s", err, out)
		}
	})
	// A busy machine may enforce a change later than the docs wait for it.
	lines = strings.NewReplacer(documented, api, "wait=1s", "wait=30s", "--wait\n", "--wait=30s\n").Replace(lines)
	out, err := run("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n" + lines)
	outputs := strings.Split(strings.ReplaceAll(out, "\r\n", "\n"), step+"\n")[1:]
	if err != nil {
		t.Fatalf("%v, at\n%s\n%s", err, all[len(outputs)-1].lines, out)
	}
	for i, s := range all {
		if s.output != nil && !s.fits(outputs[i]) {
			t.Errorf("%s: the docs have for %s\n%s\nwant\n%s", s.section, s.lines, strings.Join(s.output, "\n"), outputs[i])
		}
	}
	checkAnswers(t, out)
}

func TestThePlaygroundSaysLastThatItsAddressIsInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, variable := range []string{"LISTEN", "METRICS_LISTEN"} {
		start := exec.Command("kong/playground.sh", "up")
		start.Dir = workFolder(t)
		start.Env = append(os.Environ(), "LISTEN=127.0.0.1:0", "METRICS_LISTEN=off", variable+"="+taken.Addr().String())
		out, err := start.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		want := taken.Addr().String() + " is in use: end what listens there, or set " + variable + " to another address"
		if err == nil || !strings.Contains(lines[len(lines)-1], want) {
			t.Errorf("%s: %v, want %q in the last line\n%s", variable, err, want, out)
		}
	}
}

// checkAnswers checks the promises of the text about the answers of the REST API.
func checkAnswers(t *testing.T, out string) {
	t.Helper()
	answers := regexp.MustCompile(`(?m)^\++ .*$`).ReplaceAllString(out, "") // without the commands
	for text, times := range map[string]int{
		`"enforced":true`: 3, `"enforced":false`: 0, `"allowed":true`: 2, `"limit":1200`: 1, `"limit":5000`: 2,
		`"preview":true`: 1, "revoked token ann": 1,
	} {
		if n := strings.Count(answers, text); n < times || times == 0 && n > 0 {
			t.Errorf("%d times %s, want %d\n%s", n, text, times, out)
		}
	}
}

func TestAnOutputThatDiffersFromTheDocsIsFound(t *testing.T) {
	t.Parallel()
	s := shown{output: []string{"version 4 of …: enforced", "…", "end"}}
	for output, want := range map[string]bool{
		"version 4 of today: enforced\nend\n":         true,
		"version 4 of today: enforced\na\nb\nend\n":   true,
		"version 4 of : enforced\nend\n":              false,
		"version 5 of today: enforced\nend\n":         false,
		"version 4 of today: enforced\nend\nmore\n":   false,
		"first\nversion 4 of today: enforced\nend\n":  false,
		"version 4 of today: not enforced\na\nend.\n": false,
	} {
		if got := s.fits(output); got != want {
			t.Errorf("fits(%q) is %v, want %v", output, got, want)
		}
	}
}
