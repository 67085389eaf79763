package simulate

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
)

const sizingPage = "../../docs/sizing.md"

// sizingRows are the rows of the table of docs/sizing.md that a simulation finds.
var sizingRows = []struct {
	name string
	cell func(*Report) string
}{
	{"decided without a call of Redis", func(r *Report) string { return three(r.FromLeasePct) + " %" }},
	{"Redis commands/s", func(r *Report) string { return thousands(r.RedisOps) }},
	{"commands for 1,000 requests", func(r *Report) string { return thousands(r.OpsPer1000) }},
	{"leased tokens that are spent", func(r *Report) string { return three(percent(float64(r.Spent), float64(r.Granted))) + " %" }},
	{"Redis CPU, cores", func(r *Report) string { return three(r.RedisCores) }},
	{"the busiest master is busy for", func(r *Report) string { return three(r.BusiestPct) + " %" }},
	{"CPU of the plugin, cores", func(r *Report) string { return three(r.NodeCores) }},
	{
		"wait for Redis, 99th percentile of all requests",
		func(r *Report) string { return fmt.Sprintf("%.2f ms", r.WaitP99) },
	},
	{"denied beyond an ideal limiter", func(r *Report) string { return fmt.Sprintf("%.2f %%", r.UnderPct) }},
}

// three returns a number with three digits that matter.
func three(n float64) string { return strconv.FormatFloat(n, 'g', 3, 64) }

// thousands returns a whole number with commas.
func thousands(n float64) string {
	text := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// TestSoakTheTableOfSizingIsWhatAFleetNeeds simulates the first column of the table, and all columns in the long form.
func TestSoakTheTableOfSizingIsWhatAFleetNeeds(t *testing.T) {
	page, err := os.ReadFile(sizingPage)
	require.NoError(t, err)
	lines := strings.Split(string(page), "\n")
	columns := []string{"ten-thousand", "hundred-thousand", "million"}
	for column, name := range columns[:soak.Count(1, len(columns))] {
		r := simulateFile(t, name)
		if r.OverTokens != 0 {
			t.Errorf("%s: %d tokens above the bound, want none", name, r.OverTokens)
		}
		for _, row := range sizingRows {
			checkCell(t, lines, row.name, column, row.cell(r))
		}
	}
	if golden.Update() {
		require.NoError(t, os.WriteFile(sizingPage, []byte(strings.Join(lines, "\n")), 0o644))
	}
}

// checkCell fails the test unless a column of a row has a text, or writes it there.
func checkCell(t *testing.T, lines []string, name string, column int, want string) {
	t.Helper()
	for i, line := range lines {
		cells := strings.Split(line, " | ")
		if cells[0] != "| "+name || len(cells) != 4 {
			continue
		}
		got := strings.TrimSuffix(cells[column+1], " |")
		if golden.Update() {
			cells[column+1] = strings.Replace(cells[column+1], got, want, 1)
			lines[i] = strings.Join(cells, " | ")
		} else if got != want {
			t.Errorf("%s, column %d is %s, the simulation finds %s", name, column+1, got, want)
		}
		return
	}
	t.Errorf("the table has no row %q", name)
}

func TestAFleetFarFromItsRedisLeasesAndNeedsALongTimeout(t *testing.T) {
	if r := simulateFile(t, "regions"); r.FromLeasePct < 25 || r.FromLeasePct > 40 || r.LocalPct > 1 || r.OverTokens != 0 {
		t.Errorf("%.1f %% decided without a call, %.1f %% by fail modes, %d above the bound", r.FromLeasePct, r.LocalPct,
			r.OverTokens)
	}
}

// simulateFile simulates a scenario of testdata.
func simulateFile(t *testing.T, name string) *Report {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".yaml")
	require.NoError(t, err)
	return run(t, string(text))
}
