package spec

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the paths of all pages in the repository.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../docs/*.md")
	recipes, _ := filepath.Glob("../docs/cookbook/*.md") // the pattern is valid
	if err != nil || len(pages) == 0 || len(recipes) == 0 {
		t.Fatalf("%d pages in docs, %d in docs/cookbook, %v", len(pages), len(recipes), err)
	}
	pages = append(pages, recipes...)
	pages = append(pages, "../README.md", "../CHANGELOG.md", "../SECURITY.md", "../migrations/README.md",
		"../plugin/bucket/redis/README.md")
	for i, page := range pages {
		pages[i] = strings.TrimPrefix(page, "../")
	}
	return pages
}

// block is a fenced block of a page.
type block struct{ language, text string }

var fenced = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")

// codeBlocks returns the fenced blocks of a page.
func codeBlocks(text string) []block {
	var all []block
	for _, found := range fenced.FindAllStringSubmatch(text, -1) {
		all = append(all, block{found[1], found[2]})
	}
	return all
}

func TestTheREADMEIsShort(t *testing.T) {
	t.Parallel()
	if size := len(file(t, "README.md")); size > 12<<10 {
		t.Errorf("the README has %d bytes, want at most 12 KiB: move details to docs", size)
	}
}

var (
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeSpan   = regexp.MustCompile("`[^`\n]*`")
)

func TestEveryLinkOfTheDocsLeadsSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range documents(t) {
		prose := codeSpan.ReplaceAllString(fenced.ReplaceAllString(file(t, page), ""), "code")
		for _, found := range linkTarget.FindAllStringSubmatch(prose, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(found[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s links to %s: %v", page, found[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(file(t, target)), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, found[1], target)
			}
		}
	}
}

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for line := range strings.Lines(fenced.ReplaceAllString(text, "")) {
		if hashes, heading, found := strings.Cut(strings.TrimSpace(line), " "); found && strings.Trim(hashes, "#") == "" {
			heading = notInAnchors.ReplaceAllString(strings.ToLower(heading), "")
			all = append(all, strings.ReplaceAll(heading, " ", "-"))
		}
	}
	return all
}

// Blocks of yaml are judged by TestEveryDeckSnippetIsAcceptedByKongAndByValidate, those of sql run in package
// migrations, and those of sh and console in TestTheCommandsOfTheDocsRunAsOneSession. Those of the README run in
// .ci/readme.
func TestEveryCodeBlockOfTheDocsIsChecked(t *testing.T) {
	t.Parallel()
	for _, page := range documents(t) {
		for _, b := range codeBlocks(file(t, page)) {
			switch b.language {
			case "json":
				if !json.Valid([]byte(b.text)) {
					t.Errorf("%s has invalid JSON:\n%s", page, b.text)
				}
			case "http":
				_, body, found := strings.Cut(b.text, "\n\n")
				if !found || !json.Valid([]byte(body)) {
					t.Errorf("%s has an answer with invalid JSON:\n%s", page, b.text)
				}
			case "mermaid":
				if kind, _, _ := strings.Cut(b.text, "\n"); kind != "sequenceDiagram" && kind != "flowchart LR" {
					t.Errorf("%s has a diagram of the kind %q", page, kind)
				}
			case "sh", "console":
				// They take minutes, serve without an end, or need a cluster.
				checked := []string{"README.md", "docs/benchmarks.md", "docs/doors.md", "docs/kubernetes.md"}
				if slices.Contains(checked, page) {
					checkCommands(t, b.text)
				} else if !slices.Contains(sessionPages, page) {
					t.Errorf("%s has commands, and no test runs them:\n%s", page, b.text)
				}
			case "go":
				// Tests of the package webhook and of this one run them.
				if !slices.Contains([]string{"docs/webhooks.md", "docs/integration.md", "docs/doors.md"}, page) {
					t.Errorf("%s has code, and no test runs it:\n%s", page, b.text)
				}
			case "bash", "python", "javascript":
				if page != "docs/integration.md" { // a test runs its clients
					t.Errorf("%s has code, and no test runs it:\n%s", page, b.text)
				}
			case "yaml", "sql", "text", "caddyfile": // other tests write blocks of text, and run those of Caddy
			case "nginx":
				if !strings.Contains(b.text, " = ") {
					t.Errorf("%s has a line of kong.conf without a value: %s", page, b.text)
				}
			default:
				t.Errorf("%s has a block of the language %q, which no test checks:\n%s", page, b.language, b.text)
			}
		}
	}
}

var (
	makeTarget  = regexp.MustCompile(`(?m)^make ([a-z-]+)`)
	commandLine = regexp.MustCompile(`(?m)^ *ratelimit ([a-z ]+?)( --.*|$)`)
	longFlag    = regexp.MustCompile(`--[a-z-]+`)
)

// checkCommands checks that the commands of a block exist, and have the flags that it gives them.
func checkCommands(t *testing.T, text string) {
	t.Helper()
	for _, line := range makeTarget.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(file(t, "Makefile"), "\n"+line[1]+":") {
			t.Errorf("the Makefile has no target %s", line[1])
		}
	}
	for _, line := range commandLine.FindAllStringSubmatch(text, -1) {
		help, _ := exec.Command(filepath.Join(binaries, "ratelimit"),
			append(strings.Fields(line[1]), "-h")...).CombinedOutput()
		for _, flag := range longFlag.FindAllString(line[2], -1) {
			if !strings.Contains(string(help), flag) {
				t.Errorf("ratelimit %s has no flag %s:\n%s", line[1], flag, help)
			}
		}
	}
}
