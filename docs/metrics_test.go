// Package docs has no code: it checks the pages that are generated from golden lists.
package docs

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

const (
	metricsPage  = "metrics.md"
	metricsStart = "<!-- metrics:start: written by go test ./docs -update; do not edit -->\n"
	metricsEnd   = "<!-- metrics:end -->\n"
)

var (
	// In the golden list of package metrics: name, type and labels, and the help on the next line.
	pluginMetric = regexp.MustCompile(`(?m)^(\w+) (\w+) \{(.*)\}\n    (.*)$`)
	// In the list of package control/api: name, type and help, and a line for each series.
	controlMetric = regexp.MustCompile(`(?m)^(\w+) (\w+) (.*)\n((?:  .*\n|\n)*)`)
	labelName     = regexp.MustCompile(`(\w+)="`)
)

// metricTable returns the tables of all metrics, from the golden lists of the packages that publish them.
func metricTable(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	head := func(title string) {
		b.WriteString("\n## " + title + "\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n")
	}
	row := func(name, kind, labels, help string) {
		if labels != "" {
			labels = "`" + strings.ReplaceAll(labels, ",", "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, kind, labels, strings.ReplaceAll(help, "|", `\|`))
	}
	head("Metrics of the plugin server")
	published := read(t, "../plugin/observe/metrics/testdata/metrics.golden")
	for _, m := range pluginMetric.FindAllStringSubmatch(published, -1) {
		row(m[1], m[2], m[3], m[4])
	}
	head("Metrics of ratelimit serve")
	for _, m := range controlMetric.FindAllStringSubmatch(read(t, "../plugin/control/api/testdata/metrics.golden"), -1) {
		var labels []string
		first, _, _ := strings.Cut(m[4], "\n")
		for _, label := range labelName.FindAllStringSubmatch(first, -1) {
			labels = append(labels, label[1])
		}
		row(m[1], m[2], strings.Join(labels, ","), m[3])
	}
	for _, folder := range []string{
		"leader/usage", "leader/quota", "leader/abuse", "events/relay", "events/webhook/sender", "control/portal",
		"control/envoy", "control/forward",
	} {
		for _, m := range pluginMetric.FindAllStringSubmatch(read(t, "../plugin/"+folder+"/testdata/metrics.golden"), -1) {
			row(m[1], m[2], m[3], m[4])
		}
	}
	return b.String() + "\n"
}

func TestTheDocsListEveryMetric(t *testing.T) {
	golden.CheckSection(t, metricsPage, metricsStart, metricsEnd, metricTable(t))
}

// read returns the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
