package deck_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema/deck"
)

func lines(findings []deck.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

func TestFindingsNameTheLineAndThePath(t *testing.T) {
	for _, name := range []string{"faulty", "doubtful"} {
		t.Run(name, func(t *testing.T) {
			file, err := os.Open("testdata/" + name + ".yaml")
			require.NoError(t, err)
			defer file.Close()
			got := lines(deck.Validate(file, name+".yaml"))
			golden.Check(t, "testdata/"+name+".golden", got)
		})
	}
}

const oneConfig = `
plugins:
- name: tenant-rate-limiting
  config:
    on_missing_tenant: skip
    tiers:
    - name: a
      limits:
      - {name: rate, scope: tenant, endpoint: "GET /x", limit: 10, window_size: 1}
`

func TestFaultsOfAnExtraCheckAreLocated(t *testing.T) {
	check := func(c schema.Config) error {
		if len(c.Tiers) != 1 {
			t.Errorf("the check receives %+v", c)
		}
		return fmt.Errorf("compile: %w", schema.Faults{{Path: "tiers[0].limits[0].endpoint", Message: "is ambiguous"}})
	}
	other := func(schema.Config) error { return errors.New("cannot compile") }
	got := lines(deck.Validate(strings.NewReader(oneConfig), "kong.yml", check, other))
	want := "kong.yml:5: error: plugins[0].config: cannot compile\n" +
		"kong.yml:9: error: plugins[0].config.tiers[0].limits[0].endpoint: is ambiguous\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFaultsOfAnExtraCheckAreReportedWithThoseOfTheConfig(t *testing.T) {
	faulty := strings.Replace(oneConfig, "limit: 10", "limit: 0", 1)
	check := func(schema.Config) error {
		return schema.Faults{
			{Path: "tiers[0].limits[0].limit", Message: "is a consequence"},
			{Path: "tiers[0].limits[0].endpoint", Message: "is ambiguous"},
		}
	}
	got := lines(deck.Validate(strings.NewReader(faulty), "kong.yml", check))
	if strings.Count(got, "\n") != 2 || !strings.Contains(got, "is ambiguous") || strings.Contains(got, "consequence") {
		t.Errorf("got\n%s\nwant the config's own fault and the one about another value", got)
	}
}

func TestAFileWithoutThePluginGetsAWarning(t *testing.T) {
	for _, text := range []string{
		"", "{}", "[]", "a: b", "plugins: {}", "plugins:\n- name: key-auth\n- 7\n", "services:\n- plugins: ~\n",
	} {
		got := deck.Validate(strings.NewReader(text), "kong.yml")
		if len(got) != 1 || got[0].Severity != deck.Warning || !strings.Contains(got[0].Message, "no config") {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestAFileThatIsNotYAMLIsOneFinding(t *testing.T) {
	got := deck.Validate(strings.NewReader("plugins:\n- name: [\n"), "kong.yml")
	if len(got) != 1 || got[0].Severity != deck.Error || got[0].Line < 2 ||
		!strings.Contains(got[0].Message, "is not YAML") {
		t.Errorf("got %v", got)
	}
}

func TestAliasesThatExplodeOrLoopAreFindings(t *testing.T) {
	bomb := "a: &a0 [x]\n"
	for i := range 30 {
		bomb += fmt.Sprintf("b%d: &a%d [*a%d, *a%d]\n", i, i+1, i, i)
	}
	for name, text := range map[string]string{
		"bomb":             bomb,
		"loop":             "a: &a [*a]\n",
		"loop in a config": "plugins:\n- name: tenant-rate-limiting\n  config: &c {tiers: [*c]}\n",
	} {
		got := deck.Validate(strings.NewReader(text), "kong.yml")
		if len(got) != 1 || !strings.Contains(got[0].Message, "too many values") {
			t.Errorf("%s: %v", name, got)
		}
	}
	const ten = "[*%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s, *%[1]s]\n"
	wide := "a: &a [[], [], [], [], [], [], [], [], [], []]\n" +
		"b: &b " + fmt.Sprintf(ten, "a") + "c: &c " + fmt.Sprintf(ten, "b") + "plugins:\n" +
		strings.Repeat("- {name: tenant-rate-limiting, config: {costs: *c}}\n", 2000)
	got := deck.Validate(strings.NewReader(wide), "kong.yml")
	if last := got[len(got)-1]; !strings.Contains(last.Message, "too many values") {
		t.Errorf("many configs with many values each: %v", last)
	}
	merge := "plugins:\n- name: tenant-rate-limiting\n  config: &c {<<: *c, mode: log, on_missing_tenant: skip}\n"
	if got := deck.Validate(strings.NewReader(merge), "kong.yml"); len(got) != 1 || got[0].Severity != deck.Warning {
		t.Errorf("a mapping merged into itself: %v", got)
	}
}

func TestMergeKeysAddTheKeysThatAConfigLacks(t *testing.T) {
	text := `
x: &base {mode: log, error_code: 7, on_missing_tenant: skip}
plugins:
- name: tenant-rate-limiting
  config: {<<: *base, mode: shadow, global: {limits: [{name: all, scope: global, limit: 1, window_size: 1}]}}
`
	check := func(c schema.Config) error { return fmt.Errorf("mode %s, code %d", c.Mode, c.ErrorCode) }
	text = strings.Replace(text, "error_code: 7", "error_code: 503", 1)
	want := "kong.yml:5: error: plugins[0].config: mode shadow, code 503\n"
	if got := lines(deck.Validate(strings.NewReader(text), "kong.yml", check)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add(oneConfig)
	f.Add("a: &a {<<: [*a, *a], plugins: *a}")
	for _, name := range []string{"faulty", "doubtful"} {
		text, err := os.ReadFile("testdata/" + name + ".yaml")
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, finding := range deck.Validate(strings.NewReader(text), "kong.yml") {
			if finding.Line < 1 || finding.Message == "" {
				t.Errorf("a finding without line or message: %+v", finding)
			}
		}
	})
}
