package cli

import (
	"os"
	"strings"
	"testing"
)

const cliPage = "../../docs/cli.md"

// cliDocs returns docs/cli.md: the help of the program and of every command.
func cliDocs() string {
	var b strings.Builder
	b.WriteString("# The ratelimit command\n\n<!-- written by go test ./plugin/cli -run Docs -update; do not edit -->\n\n")
	root := new(operator).newRoot()
	b.WriteString("```text\n" + helpText(root) + "```\n")
	for _, c := range leaves(root) {
		b.WriteString("\n## " + c.CommandPath() + "\n\n```text\n" + helpText(c) + "```\n")
	}
	return b.String()
}

func TestTheDocsListEveryCommandWithItsFlags(t *testing.T) {
	got := cliDocs()
	if *update {
		if err := os.WriteFile(cliPage, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(cliPage)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("docs/cli.md differs from the help of the commands: go test ./plugin/cli -run Docs -update")
	}
}
