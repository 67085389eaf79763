package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

func TestYAMLHasTheFieldsOfJSONInTheirOrderAndReadsAsTheSame(t *testing.T) {
	type row struct {
		Name  string         `json:"name"`
		Limit int64          `json:"limit"`
		Near  float64        `json:"near"`
		Live  bool           `json:"live"`
		At    time.Time      `json:"at"`
		Empty []string       `json:"empty"`
		None  *int           `json:"none"`
		More  map[string]any `json:"more,omitempty"`
	}
	rows := []row{
		{Name: "true", Limit: 1 << 60, Near: 0.25, Live: true, At: noon, Empty: []string{}},
		{Name: "evil\x1b[2J\u202e\U000e0001: - # \"", More: map[string]any{"a b": []any{"1", 1.0}}},
		{Name: "two\nlines"},
	}
	var b strings.Builder
	require.NoError(t, writeYAML(&b, rows))
	const begin = "- name: \"true\"\n  limit: 1152921504606846976\n  near: 0.25\n  live: true\n"
	if !strings.HasPrefix(b.String(), begin) {
		t.Errorf("written as\n%s", b.String())
	}
	var back []row
	require.NoError(t, readAs(formatYAML, b.String(), &back))
	want, _ := json.Marshal(rows)
	if got, _ := json.Marshal(back); string(got) != string(want) {
		t.Errorf("read back as\n%s\nwant\n%s", got, want)
	}
	plainly(t, "YAML", b.String())
}

func TestAStringIsReadBackFromYAMLAsItWas(t *testing.T) {
	for _, text := range []string{
		"daily", "POST /a/{id}", "it's: a #note, [sic", "12", "0x1f", "1e3", "2026-01-31",
		"yes", "No", "NULL", "~", "y", "off",
		"true", "trues", "", " ", "a ", " a", "a: b", "a #b", "-", "- a", "&a", "*a", "!a", "%a", "@a",
		"`a", "\"", "\\", "'", "a\tb",
		"two\nlines", "evil\x1b[2J\u202e\U000e0001", "日本", "👍", "Europe/Berlin", "tenant+endpoint",
		"a,b", "a]b", "?", ": ", "<<",
	} {
		var back struct {
			Text string   `yaml:"text"`
			List []string `yaml:"list"`
		}
		document := "text: " + yamlString(text) + "\nlist: [" + yamlString(text) + "]\n"
		if err := yaml.Unmarshal([]byte(document), &back); err != nil || back.Text != text || back.List[0] != text {
			t.Errorf("%q is written as\n%sand read as %+v (%v)", text, document, back, err)
		}
	}
}

// readAs reads a document into a value whose fields are named for JSON.
func readAs(format, document string, to any) error {
	if format == formatYAML {
		var value any
		if err := yaml.Unmarshal([]byte(document), &value); err != nil {
			return err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		document = string(text)
	}
	return json.Unmarshal([]byte(document), to)
}
