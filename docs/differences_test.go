package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"

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
	page := read(t, migratingPage)
	before, tail, found := strings.Cut(page, differencesStart)
	_, after, ended := strings.Cut(tail, differencesEnd)
	if !found || !ended {
		t.Fatalf("%s lacks the marks of the table", migratingPage)
	}
	want := before + differencesStart + table.String() + differencesEnd + after
	if *update {
		if err := os.WriteFile(migratingPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if page != want {
		t.Errorf("%s does not list the differences as package fromkong has them: go test ./docs -update rewrites it",
			migratingPage)
	}
}
