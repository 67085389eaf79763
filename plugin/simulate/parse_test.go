package simulate_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Each case of testdata/faults.txt is a line of a scenario, and below it the fault that it must have.
func TestValuesThatMakeNoSenseAreFaultsWithTheirPath(t *testing.T) {
	text, err := os.ReadFile("testdata/faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(cases) < 40 {
		t.Fatalf("%d lines in testdata/faults.txt", len(cases))
	}
	for pair := range slices.Chunk(cases, 2) {
		line, want := pair[0], strings.TrimPrefix(pair[1], "  ")
		name, _, _ := strings.Cut(line, ":")
		lines := []string{line}
		for _, other := range []string{
			"nodes: 2", "tenants: [{count: 2}]", "load: [{for: 5s, rate: 10}]", "config: {default_tier: a, tiers: [{name: a}]}",
		} {
			if !strings.HasPrefix(other, name+":") {
				lines = append(lines, other)
			}
		}
		_, err := simulate.Parse([]byte(strings.Join(lines, "\n")))
		if !errors.As(err, new(schema.Faults)) || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", line, err, want)
		}
	}
}

func TestAllFaultsOfAScenarioAreReported(t *testing.T) {
	_, err := simulate.Parse([]byte("nodes: 0\nredis: {masters: -1}"))
	const want = "config: is required: the plugin's config, as under config: in a decK file, such as {tiers: [...]}\n" +
		"nodes: must be from 1 to 1000, got 0\nredis.masters: must be from 1 to 1000, got -1\n" +
		"tenants: must have an entry, such as {tier: gold, count: 100}\n" +
		"load: must have a phase, such as {for: 10s, rate: 1000}"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestATextThatIsNoScenarioIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "the scenario is empty: ratelimit simulate --list shows those that are shipped",
		"nodes: [":            "the scenario is not YAML: ",
		"nodes: 1\n---\nx: 1": "the scenario must be a single YAML document: remove everything after ---",
		"3":                   "config: must be a mapping with the fields about, ",
		"nodes: 1\nnodes: 2":  "nodes: appears twice: remove one",
	} {
		if _, err := simulate.Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
