package spec

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testCommand = regexp.MustCompile("`go test (\\./[^ `]+) ([^`]+)`")
	testPattern = regexp.MustCompile(`-(?:run|bench) ('[^']+'|\S+)`)
	testName    = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
)

// testsOf returns the names of the tests and benchmarks in a package.
func testsOf(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	require.NoError(t, err)
	var names []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, found := range testName.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}

// unmatched returns the alternatives of the patterns among the flags of go test, as they stand in a table, without a
// matching name. The pattern ^$ matches no test.
func unmatched(t *testing.T, flags string, names []string) []string {
	t.Helper()
	var patterns, without []string
	for _, found := range testPattern.FindAllStringSubmatch(flags, -1) {
		if pattern := strings.Trim(found[1], "'"); pattern != "^$" {
			patterns = append(patterns, pattern)
		}
	}
	if patterns == nil {
		t.Fatalf("no pattern in %s", flags)
	}
	for alternative := range strings.SplitSeq(strings.ReplaceAll(strings.Join(patterns, "|"), `\|`, "|"), "|") {
		run, err := regexp.Compile(alternative)
		require.NoError(t, err)
		if !run.MatchString(strings.Join(names, "\n")) {
			without = append(without, alternative)
		}
	}
	return without
}

func TestEveryClaimOfTheThreatModelNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(file(t, "docs/security.md"), "\n## How each claim is tested\n")
	if !found {
		t.Fatal("docs/security.md has no section about the tests")
	}
	claims, tests := 0, map[string][]string{}
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| claim |") {
			continue
		}
		claims++
		commands := testCommand.FindAllStringSubmatch(line, -1)
		if commands == nil {
			t.Errorf("no test: %s", line)
		}
		for _, command := range commands {
			if tests[command[1]] == nil {
				tests[command[1]] = testsOf(t, command[1])
			}
			for _, alternative := range unmatched(t, command[2], tests[command[1]]) {
				t.Errorf("no test of %s is called %s: %s", command[1], alternative, line)
			}
		}
	}
	if claims == 0 {
		t.Error("the section has no claims")
	}
}
