package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scattered has a config of the plugin on everything that Kong can have one on.
const scattered = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: everything}}
- {name: tenant-rate-limiting, route: search, config: {namespace: by-reference}}
services:
- name: echo
  routes:
  - {name: records}
  - name: search
- name: shop
  plugins:
  - {name: tenant-rate-limiting, config: {namespace: shop}}
  routes:
  - name: cart
    plugins:
    - {name: tenant-rate-limiting, config: {namespace: cart}}
  - name: goods
routes:
- {name: late, service: {name: shop}}
consumers:
- username: acme
  plugins:
  - {name: tenant-rate-limiting, config: {namespace: acme}}
`

func TestTheConfigOfARouteIsTheOneThatKongRuns(t *testing.T) {
	configs, err := pluginConfigs([]byte(scattered), "kong.yml")
	if err != nil {
		t.Fatal(err)
	}
	for route, want := range map[string]string{
		"records": "everything", "search": "by-reference", "cart": "cart", "goods": "shop", "late": "shop",
	} {
		chosen, err := chooseConfig(configs, &configFlags{file: "kong.yml", route: route}, routesOf([]byte(scattered)))
		if err != nil || chosen.Namespace != want {
			t.Errorf("route %s: %v (%v), want the config of namespace %s", route, chosen, err, want)
		}
	}
	_, err = chooseConfig(configs, &configFlags{file: "kong.yml"}, routesOf([]byte(scattered)))
	const all = "everything; route search; service shop; route cart of service shop; consumer acme"
	if err == nil || !strings.Contains(err.Error(), all) {
		t.Errorf("without a route: %v, want it to tell the configs: %s", err, all)
	}
}

func TestAFaultyDecKFileIsNotExplained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kong.yml")
	if err := os.WriteFile(file, []byte("plugins: [{name: tenant-rate-limiting, config: {mode: enforced, strategy: disk}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t}
	code := x.call("explain", "--config", file, "--config-only", "--tenant", "acme")
	if said := x.output.String(); code != exitFailed || strings.Count(said, "\n") != 2 || !strings.Contains(said, "plugins[0].config.mode") {
		t.Errorf("exit code %d, want 1 and a line for each of two faults; said\n%s", code, said)
	}
}

func TestAStrangerIsExplainedAsTheConfigCountsIt(t *testing.T) {
	x := &terminal{t: t}
	code := x.call("explain", "--config", "testdata/ratelimit/buckets.yml", "--config-only")
	if said := x.output.String(); code != 0 || !strings.Contains(said, "no tenant, tier essentials") || !strings.Contains(said, "must all have room") {
		t.Errorf("exit code %d, said\n%s", code, said)
	}
}
