package promtest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Published are metrics by the names that expressions use, each with its labels: a histogram has its three, and there
// is what every scrape has.
type Published map[string][]string

// scraped lists the labels that Prometheus adds to what it scrapes.
var scraped = []string{"job", "instance"}

// family is the first line that describes a metric: its name, its type and its labels.
var family = regexp.MustCompile(`(?m)^(\w+) (\w+) \{([\w,]*)\}$`)

// ReadPublished reads a list of metrics that says of each, on one line, "name type {label,label}".
func ReadPublished(t testing.TB, file string) Published {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
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

// Faults are what an expression uses that is not published: names, labels in its matchers that the name before them
// does not have, and labels that it groups by and none of its names has. It expects an expression that Prometheus
// parses; [Promtool] and [Server.Query] tell.
func (p Published) Faults(expression string) []string {
	var faults, grouped, known []string
	name := ""
	for _, u := range uses(expression) {
		switch u.as {
		case metric:
			name = u.word
			labels, ok := p[name]
			if !ok {
				faults = append(faults, fmt.Sprintf("no metric is called %s", name))
			}
			known = append(known, labels...)
		case matcher:
			if !slices.Contains(p[name], u.word) && !slices.Contains(scraped, u.word) {
				faults = append(faults, fmt.Sprintf("%s has no label %s", name, u.word))
			}
		case group:
			grouped = append(grouped, u.word)
		}
	}
	for _, label := range grouped {
		if !slices.Contains(known, label) && !slices.Contains(scraped, label) {
			faults = append(faults, fmt.Sprintf("no metric of the expression has a label %s", label))
		}
	}
	if name == "" {
		faults = append(faults, "it uses no metric")
	}
	return faults
}

// What a word of an expression can be, beside a function, an operator or a number.
const (
	metric = iota
	matcher
	group
)

type use struct {
	as   int
	word string
}

var (
	tokens   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|[\d.]\w*|[a-zA-Z_]\w*|\S`)
	word     = regexp.MustCompile(`^[a-zA-Z_]`)
	grouping = []string{"by", "without", "on", "ignoring", "group_left", "group_right"}
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
		case token == "(" && i > 0 && slices.Contains(grouping, all[i-1]):
			inGroup = true
		case token == ")":
			inGroup = false
		case !word.MatchString(token) || slices.Contains(operator, token) || slices.Contains(grouping, token):
		case inMatchers:
			found = append(found, use{matcher, token})
		case inGroup:
			found = append(found, use{group, token})
		case all[i+1] == "(" || slices.Contains(grouping, all[i+1]): // a function or an aggregation
		default:
			found = append(found, use{metric, token})
		}
	}
	return found
}
