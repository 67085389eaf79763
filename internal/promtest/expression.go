package promtest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// Published maps the metric names that expressions use to their labels. A histogram has three names. The metrics of
// every scrape are included.
type Published map[string][]string

// scraped lists the labels that Prometheus adds to each series.
var scraped = []string{"job", "instance"}

// family is the first line that describes a metric: its name, its type and its labels.
var family = regexp.MustCompile(`(?m)^(\w+) (\w+) \{([\w,]*)\}$`)

// ReadPublished reads a list of metrics with a line "name type {label,label}" for each.
func ReadPublished(t testing.TB, file string) Published {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	published := Published{
		"up": nil, "process_cpu_seconds_total": nil, "process_resident_memory_bytes": nil,
	}
	lines := family.FindAllStringSubmatch(string(text), -1)
	if len(lines) == 0 {
		t.Fatalf("%s describes no metric", file)
	}
	for _, line := range lines {
		name, labels := line[1], strings.Split(line[3], ",")
		if line[2] != "histogram" {
			published[name] = labels
			continue
		}
		published[name+"_bucket"] = append([]string{"le"}, labels...)
		published[name+"_sum"], published[name+"_count"] = labels, labels
	}
	return published
}

// Faults returns the unpublished parts of an expression: names, labels in matchers that the metric does not have, and
// grouping labels that no metric of the expression has. The expression must be valid, which [Promtool] and
// [Server.Query] check.
func (p Published) Faults(expression string) []string {
	var faults, grouping, labels []string
	name := ""
	for _, u := range uses(expression) {
		switch u.kind {
		case metric:
			name = u.word
			found, ok := p[name]
			if !ok {
				faults = append(faults, fmt.Sprintf("no metric is called %s", name))
			}
			labels = append(labels, found...)
		case matcher:
			if !slices.Contains(p[name], u.word) && !slices.Contains(scraped, u.word) {
				faults = append(faults, fmt.Sprintf("%s has no label %s", name, u.word))
			}
		case group:
			grouping = append(grouping, u.word)
		}
	}
	for _, label := range grouping {
		if !slices.Contains(labels, label) && !slices.Contains(scraped, label) {
			faults = append(faults, fmt.Sprintf("no metric of the expression has a label %s", label))
		}
	}
	if name == "" {
		faults = append(faults, "it uses no metric")
	}
	return faults
}

// The kinds of words of an expression. Functions, operators and numbers have none.
const (
	metric = iota
	matcher
	group
)

// use is a metric or label in an expression.
type use struct {
	kind int
	word string
}

var (
	tokens   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|[\d.]\w*|[a-zA-Z_]\w*|\S`)
	word     = regexp.MustCompile(`^[a-zA-Z_]`)
	groupers = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
	operator = []string{"and", "or", "unless", "bool", "offset"}
)

// uses returns the metrics and labels of an expression, in their order.
func uses(expression string) []use {
	var found []use
	all := append(tokens.FindAllString(expression, -1), "")
	inMatchers, inGroup := false, false
	for i, token := range all[:len(all)-1] {
		switch {
		case token == "{" || token == "}":
			inMatchers = token == "{"
		case token == "(" && i > 0 && slices.Contains(groupers, all[i-1]):
			inGroup = true
		case token == ")":
			inGroup = false
		case !word.MatchString(token) || slices.Contains(operator, token) || slices.Contains(groupers, token):
		case inMatchers:
			found = append(found, use{matcher, token})
		case inGroup:
			found = append(found, use{group, token})
		case all[i+1] == "(" || slices.Contains(groupers, all[i+1]): // a function or an aggregation
		default:
			found = append(found, use{metric, token})
		}
	}
	return found
}

// CheckPublished compares the metrics of collectors with a golden file, which ReadPublished reads: their names, types,
// labels and help. It returns the values of gauges and counters by name, and the values of labels after it.
func CheckPublished(t testing.TB, file string, collectors ...prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	return CheckGathered(t, file, registry)
}

// CheckGathered is CheckPublished for metrics that are registered.
func CheckGathered(t testing.TB, file string, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	text, values := "", map[string]float64{}
	for _, f := range families {
		var labels []string
		for _, m := range f.GetMetric() {
			labels = labels[:0]
			series := f.GetName()
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
				series += " " + l.GetValue()
			}
			values[series] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		text += fmt.Sprintf("%s %s {%s}\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(labels, ","), f.GetHelp())
	}
	golden.Check(t, file, text)
	return values
}

// WantValues fails the test unless series have these values. prefix begins their names.
func WantValues(t testing.TB, got map[string]float64, prefix string, wanted map[string]float64) {
	t.Helper()
	for series, want := range wanted {
		if value, ok := got[prefix+series]; value != want || !ok {
			t.Errorf("%s is %v (%v), want %v", prefix+series, value, ok, want)
		}
	}
}
