// Package prometheus holds Prometheus's files: rules.yml with the alerts and rules_test.yml with their cases. Its tests
// check them without a server. The specs check that a server loads them, and that they fire about the real plugin.
package prometheus

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

// alert holds one rule of rules.yml.
type alert struct {
	Name        string `yaml:"alert"`
	Expression  string `yaml:"expr"`
	Labels      map[string]string
	Annotations map[string]string
}

// decode decodes a YAML file.
func decode(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// encode writes a YAML file.
func encode(t *testing.T, file string, value any) {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	require.NoError(t, err)
}

// alerts returns all rules of rules.yml, and fails the test if there are none.
func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	decode(t, "rules.yml", &file)
	var all []alert
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("rules.yml has no rules")
	}
	return all
}

// TestTheAlertsFireAsInTheirCases runs each test of rules_test.yml with the alerts that it names alone: promtool test
// rules rules_test.yml evaluates all alerts in every minute of every test, which takes ten times as long.
func TestTheAlertsFireAsInTheirCases(t *testing.T) {
	var rules, tests map[string]any
	decode(t, "rules.yml", &rules)
	decode(t, "rules_test.yml", &tests)
	dir, args := t.TempDir(), []string{"test", "rules"}
	for i, test := range tests["tests"].([]any) {
		named := map[any]bool{}
		for _, c := range test.(map[string]any)["alert_rule_test"].([]any) {
			named[c.(map[string]any)["alertname"]] = true
		}
		var groups []any
		for _, group := range rules["groups"].([]any) {
			group := maps.Clone(group.(map[string]any))
			group["rules"] = slices.DeleteFunc(slices.Clone(group["rules"].([]any)), func(rule any) bool {
				return !named[rule.(map[string]any)["alert"]]
			})
			groups = append(groups, group)
		}
		one, used, file := maps.Clone(tests), fmt.Sprintf("rules%d.yml", i), fmt.Sprintf("test%d.yml", i)
		one["rule_files"], one["tests"] = []string{used}, []any{test}
		encode(t, filepath.Join(dir, used), map[string]any{"groups": groups})
		encode(t, filepath.Join(dir, file), one)
		args = append(args, file)
	}
	if output, err := promtest.Promtool(t, dir, args...); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestEveryAlertHasACaseThatFiresItAndOneThatDoesNot(t *testing.T) {
	var file struct {
		Tests []struct {
			Cases []struct {
				Alert    string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	decode(t, "rules_test.yml", &file)
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Expected) > 0
			quiet[c.Alert] = quiet[c.Alert] || len(c.Expected) == 0
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Name] || !quiet[a.Name] {
			t.Errorf("%s has a case that fires it: %v, one that does not: %v", a.Name, fires[a.Name], quiet[a.Name])
		}
	}
}

var (
	controlFamily = regexp.MustCompile(`^(\w+) counter `)
	controlLabel  = regexp.MustCompile(`(\w+)="`)
)

// readControl reads the counters of the control plane, whose list has on one line "name type help" and below it,
// indented, the labels of each series.
func readControl(t *testing.T, file string) promtest.Published {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	published, name := promtest.Published{}, ""
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, " ") {
			name = ""
			if found := controlFamily.FindStringSubmatch(line); found != nil {
				name = found[1]
				published[name] = nil
			}
		}
		if name == "" || !strings.HasPrefix(line, " ") {
			continue
		}
		for _, label := range controlLabel.FindAllStringSubmatch(line, -1) {
			published[name] = append(published[name], label[1])
		}
	}
	if len(published) == 0 {
		t.Fatalf("%s describes no counter", file)
	}
	return published
}

func TestEveryAlertUsesPublishedMetrics(t *testing.T) {
	published := promtest.ReadPublished(t, "../../plugin/observe/metrics/testdata/metrics.golden")
	maps.Copy(published, promtest.ReadPublished(t, "../../plugin/leader/usage/testdata/metrics.golden"))
	maps.Copy(published, promtest.ReadPublished(t, "../../plugin/leader/quota/testdata/metrics.golden"))
	maps.Copy(published, promtest.ReadPublished(t, "../../plugin/leader/abuse/testdata/metrics.golden"))
	maps.Copy(published, promtest.ReadPublished(t, "../../plugin/events/relay/testdata/metrics.golden"))
	maps.Copy(published, promtest.ReadPublished(t, "../../plugin/events/webhook/sender/testdata/metrics.golden"))
	maps.Copy(published, readControl(t, "../../plugin/control/api/testdata/metrics.golden"))
	for _, a := range alerts(t) {
		if faults := published.Faults(a.Expression); len(faults) > 0 {
			t.Errorf("%s: %q", a.Name, faults)
		}
	}
}

func TestEveryAlertHasASeverityADescriptionAndARunbook(t *testing.T) {
	const runbook = "https://github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/blob/main/docs/runbook.md#"
	text, err := os.ReadFile("../../docs/runbook.md")
	require.NoError(t, err)
	headings := strings.Split(string(text), "\n")
	for _, a := range alerts(t) {
		if !slices.Contains([]string{"page", "ticket", "info"}, a.Labels["severity"]) {
			t.Errorf("%s has the severity %q", a.Name, a.Labels["severity"])
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s lacks a summary or a description: %v", a.Name, a.Annotations)
		}
		if url, want := a.Annotations["runbook_url"], runbook+strings.ToLower(a.Name); url != want {
			t.Errorf("%s has its runbook at %s, want %s", a.Name, url, want)
		}
		if !slices.Contains(headings, "## "+a.Name) {
			t.Errorf("the runbook has no heading %q", "## "+a.Name)
		}
	}
}
