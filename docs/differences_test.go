package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/fromkong"
)

const (
	migratingPage    = "migrating-from-kong.md"
	differencesStart = "<!-- differences:start: written by go test ./docs -update; do not edit -->\n"
	differencesEnd   = "<!-- differences:end -->\n"
)

func TestThePageOnMigratingListsEveryDifference(t *testing.T) {
	var table strings.Builder
	table.WriteString("\n| what | Kong | this plugin |\n|---|---|---|\n")
	for _, d := range fromkong.Differences() {
		cell := func(text string) string { return strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(text) }
		fmt.Fprintf(&table, "| %s | %s | %s |\n", cell(d.What), cell(d.Kong), cell(d.Here))
	}
	table.WriteString("\n")
	golden.CheckSection(t, migratingPage, differencesStart, differencesEnd, table.String())
}
