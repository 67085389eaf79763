// Package grafana holds the dashboards about the rate limiter, as JSON files that operators import into Grafana 11 or
// newer. Edit the JSON, or export it from Grafana.
//
// The tests check every panel, that its expressions use only names that the plugin publishes, and that a dashboard has
// no other fields than those of a list. The alerts are in kong/prometheus.
package grafana

import (
	"encoding/json"
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

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

// columns is the width of a page in Grafana.
const columns = 24

// publishers lists the packages whose golden files have the names, types and labels of metrics.
var publishers = []string{
	"observe/metrics", "leader/usage", "leader/quota", "leader/abuse", "events/relay", "control/portal",
	"events/webhook/sender", "control/envoy", "control/forward",
}

// published returns the metrics of all publishers.
func published(t *testing.T) promtest.Published {
	t.Helper()
	all := promtest.Published{}
	for _, name := range publishers {
		maps.Copy(all, promtest.ReadPublished(t, "../../plugin/"+name+"/testdata/metrics.golden"))
	}
	return all
}

// dashboard is the part of a dashboard that the tests need.
type dashboard struct {
	UID        string
	Title      string
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Annotations struct {
		List []struct {
			Name, Expr, TitleFormat string
			Enable                  bool
		}
	}
	Panels []panel
}

// panel is a panel, or a row, which has its panels itself if it is collapsed, and else before them.
type panel struct {
	ID                       int
	Type, Title, Description string
	FieldConfig              struct {
		Defaults struct{ Unit, NoValue string }
	}
	GridPos   struct{ X, Y, W, H int }
	Targets   []struct{ Expr, LegendFormat string }
	Collapsed bool
	Panels    []panel
}

// unfold returns the panels and the rows, with the panels of collapsed rows behind these.
func unfold(panels []panel) (all []panel) {
	for _, p := range panels {
		all = append(append(all, p), p.Panels...)
	}
	return all
}

// forEachDashboard calls check with every dashboard of the folder.
func forEachDashboard(t *testing.T, check func(t *testing.T, file string, page *dashboard)) {
	t.Helper()
	names, err := filepath.Glob("*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			var page dashboard
			require.NoError(t, json.Unmarshal(text, &page))
			page.Panels = unfold(page.Panels)
			check(t, name, &page)
		})
	}
}

func TestEveryPanelIsInARowHasAUnitAndADescriptionAndOverlapsNoOther(t *testing.T) {
	forEachDashboard(t, func(t *testing.T, file string, page *dashboard) {
		want := "rate-limiter-" + strings.TrimSuffix(file, ".json")
		if page.UID != want || len(want) > 40 || page.Title == "" {
			t.Errorf("uid %q, title %q: want the uid %s (40 characters at most) and a title", page.UID, page.Title, want)
		}
		var taken map[[2]int]string // of a row
		var row panel
		for i, p := range page.Panels {
			if p.Type == "row" {
				if p.ID != i+1 || p.Title == "" || p.Collapsed != (len(p.Panels) > 0) || p.GridPos.Y < row.GridPos.Y {
					t.Errorf("row %d: %+v", i, p)
				}
				taken, row = map[[2]int]string{}, p
				continue
			}
			format := p.FieldConfig.Defaults
			if p.ID != i+1 || p.Title == "" || !strings.HasSuffix(p.Description, ".") || format.Unit == "" ||
				len(p.Targets) == 0 {
				t.Errorf("panel %d lacks a field: %+v", i, p)
			}
			if want := noValue(format.Unit); format.NoValue != want {
				t.Errorf("without data the panel %q shows %q, want %q", p.Title, format.NoValue, want)
			}
			if taken == nil || p.GridPos.Y <= row.GridPos.Y {
				t.Fatalf("the panel %q is above its row", p.Title)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= columns {
						t.Fatalf("panel %q overlaps %q, or the edge of the page", p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			for _, target := range p.Targets {
				if target.LegendFormat == "" {
					t.Errorf("panel %q has a query without a legend", p.Title)
				}
			}
		}
	})
}

// noValue returns what a panel shows without data: no request is 0 requests, and takes no time.
func noValue(unit string) string {
	if unit == "s" || unit == "bool_yes_no" {
		return "–"
	}
	return "0"
}

func TestEveryPageMarksPolicyVersionsAndPromotions(t *testing.T) {
	names := published(t)
	forEachDashboard(t, func(t *testing.T, _ string, page *dashboard) {
		var marks []string
		for _, a := range page.Annotations.List {
			marks = append(marks, a.Name)
			if faults := names.Faults(a.Expr); len(faults) > 0 || !a.Enable || a.TitleFormat == "" {
				t.Errorf("%+v: %q", a, faults)
			}
		}
		if want := []string{"Policy versions", "Candidates", "Promotions"}; !slices.Equal(marks, want) {
			t.Errorf("the marks are %q, want %q", marks, want)
		}
	})
}

// variableUse matches a variable in an expression.
var variableUse = regexp.MustCompile(`\$\{?(\w+)`)

func TestEveryExpressionUsesPublishedMetricsAndVariablesOfItsPage(t *testing.T) {
	names := published(t)
	forEachDashboard(t, func(t *testing.T, _ string, page *dashboard) {
		defined := map[string]bool{"__rate_interval": true, "__range": true}
		used := map[string]bool{"datasource": true} // every panel has it
		for _, v := range page.Templating.List {
			defined[v.Name] = true
			query, ok := v.Query.(map[string]any)
			if !ok {
				continue // a list of choices, or of data sources
			}
			arguments := strings.TrimPrefix(fmt.Sprint(query["query"]), "label_values")
			metric, label, ok := strings.Cut(strings.Trim(arguments, "()"), ", ")
			if faults := names.Faults("sum by (" + label + ") (" + metric + ")"); !ok || len(faults) > 0 {
				t.Errorf("the variable %s queries %v: %q", v.Name, query["query"], faults)
			}
		}
		for _, p := range page.Panels {
			for _, target := range p.Targets {
				for _, match := range variableUse.FindAllStringSubmatch(target.Expr, -1) {
					if used[match[1]] = true; !defined[match[1]] {
						t.Errorf("%s: the page has no variable %s", p.Title, match[1])
					}
				}
				if faults := names.Faults(variableUse.ReplaceAllString(target.Expr, "1")); len(faults) > 0 {
					t.Errorf("%s: %s: %q", p.Title, target.Expr, faults)
				}
			}
		}
		for _, v := range page.Templating.List {
			if !used[v.Name] {
				t.Errorf("the variable %s is unused", v.Name)
			}
		}
	})
}

func TestPrometheusParsesEveryExpression(t *testing.T) {
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	grafana := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$top", "5")
	forEachDashboard(t, func(_ *testing.T, _ string, page *dashboard) {
		for _, a := range page.Annotations.List {
			rules = append(rules, rule{fmt.Sprintf("annotation%d", len(rules)), a.Expr})
		}
		for _, p := range page.Panels {
			for _, target := range p.Targets {
				rules = append(rules, rule{fmt.Sprintf("panel%d", len(rules)), grafana.Replace(target.Expr)})
			}
		}
	})
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "panels.yml"), text, 0o600))
	if output, err := promtest.Promtool(t, dir, "check", "rules", "panels.yml"); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

// provisioning is the part of Grafana's provisioning files that the tests need.
type provisioning struct {
	APIVersion  int `yaml:"apiVersion"`
	Datasources []struct {
		Name, UID, Type, URL string
		IsDefault            bool `yaml:"isDefault"`
	}
	Providers []struct {
		Name, Type string
		Options    struct{ Path string }
	}
}

func TestGrafanaOfComposeReadsTheDashboardsAndPrometheus(t *testing.T) {
	read := func(file string) (p provisioning) {
		t.Helper()
		text, err := os.ReadFile("provisioning/" + file)
		if err == nil {
			err = yaml.Unmarshal(text, &p)
		}
		if err != nil || p.APIVersion != 1 {
			t.Fatalf("%s: version %d, %v", file, p.APIVersion, err)
		}
		return p
	}
	sources := read("datasources/prometheus.yml").Datasources
	if len(sources) != 1 || sources[0].Type != "prometheus" || !sources[0].IsDefault {
		t.Errorf("data sources %+v, want one Prometheus", sources)
	}
	providers := read("dashboards/rate-limiter.yml").Providers
	if len(providers) != 1 || providers[0].Type != "file" || providers[0].Options.Path != "/etc/grafana/dashboards" {
		t.Errorf("providers %+v, want the folder that docker-compose.yml mounts", providers)
	}
	forEachDashboard(t, func(t *testing.T, _ string, page *dashboard) {
		for _, variable := range page.Templating.List {
			if variable.Type == "datasource" && variable.Query == sources[0].Type {
				return
			}
		}
		t.Error("no variable selects the data source")
	})
}

// fieldsOf adds the paths of all fields of a JSON value. Those of a panel's options and custom fields, which depend on
// its type, begin with the type.
func fieldsOf(value any, path string, all map[string]bool) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			fieldsOf(item, path+"[]", all)
		}
	case map[string]any:
		for name, inner := range v {
			at := path + "." + name
			if at == ".panels[].panels" { // of a collapsed row
				all[at], at = true, ".panels"
			}
			kind, isPanel := v["type"].(string)
			if isPanel && path == ".panels[]" && (name == "options" || name == "fieldConfig") {
				at = kind + at
			}
			all[at] = true
			fieldsOf(inner, at, all)
		}
	}
}

// The list has the fields that the types of Grafana have, npm's @grafana/schema of the version in docker-compose.yml,
// and of annotations those of its Prometheus data source.
func TestTheDashboardsHaveOnlyFieldsThatGrafanaKnows(t *testing.T) {
	all := map[string]bool{}
	forEachDashboard(t, func(t *testing.T, file string, _ *dashboard) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var page any
		require.NoError(t, json.Unmarshal(text, &page))
		fieldsOf(page, "", all)
	})
	golden.Check(t, "testdata/fields.golden", strings.Join(slices.Sorted(maps.Keys(all)), "\n")+"\n")
}
