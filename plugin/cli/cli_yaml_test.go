package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
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
	if err := writeYAML(&b, rows); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); !strings.HasPrefix(text, "- name: \"true\"\n  limit: 1152921504606846976\n  near: 0.25\n  live: true\n") {
		t.Errorf("written as\n%s", text)
	}
	var back []row
	if err := readAs(formatYAML, b.String(), &back); err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(rows)
	if got, _ := json.Marshal(back); string(got) != string(want) {
		t.Errorf("read back as\n%s\nwant\n%s", got, want)
	}
	plainly(t, "YAML", b.String())
}
