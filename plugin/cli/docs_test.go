package cli

import (
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
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
	golden.Check(t, cliPage, cliDocs())
}
