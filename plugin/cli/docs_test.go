package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

func TestTheDocsListEveryCommandWithItsFlags(t *testing.T) {
	const head = "# The ratelimit command\n\n<!-- written by go test ./plugin/cli -run Docs -update; do not edit -->\n\n"
	x := &terminal{t: t}
	docs := head + "```text\n" + x.must("-h") + "```\n"
	for _, c := range commandsBelow(new(operator).newRoot()) {
		help := x.must(append(strings.Fields(c.CommandPath())[1:], "-h")...)
		docs += "\n## " + c.CommandPath() + "\n\n```text\n" + help + "```\n"
	}
	golden.Check(t, "../../docs/cli.md", docs)
}

// commandsBelow returns all commands below another one, groups among them.
func commandsBelow(parent *cobra.Command) (all []*cobra.Command) {
	for _, c := range parent.Commands() {
		all = append(append(all, c), commandsBelow(c)...)
	}
	return all
}
