package routeconfig

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scattered has configs of the plugin on every kind of entity.
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

func TestTheConsumersOfAFileAreKnownByAllTheirNames(t *testing.T) {
	const text = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: a}}
consumers:
- {username: ann, custom_id: acme, id: 4f1a6c1e-0000-4000-8000-000000000000}
- {username: bob}
`
	config, _, err := Load([]byte(text), "kong.yml", "")
	require.NoError(t, err)
	for name, want := range map[string]bool{
		"ann": true, "acme": true, "4f1a6c1e-0000-4000-8000-000000000000": true, "bob": true, "eve": false, "": false,
	} {
		if got := config.ConsumerNames[name]; got != want {
			t.Errorf("%q is a consumer: %t, want %t", name, got, want)
		}
	}
}

func TestAConfigThatShowsUsageIsNotOneToChooseFrom(t *testing.T) {
	const text = `
plugins:
- {name: tenant-rate-limiting, config: {namespace: deciding}}
- {name: tenant-rate-limiting, route: usage, config: {namespace: deciding, usage_only: true}}
routes:
- {name: usage, paths: [/usage]}
`
	chosen, _, err := Load([]byte(text), "kong.yml", "")
	if err != nil || chosen.UsageOnly {
		t.Errorf("without a route: %+v (%v), want the config that decides", chosen, err)
	}
	chosen, _, err = Load([]byte(text), "kong.yml", "usage")
	if err != nil || !chosen.UsageOnly {
		t.Errorf("for the route: %+v (%v), want its config", chosen, err)
	}
}

func TestTheConfigOfARouteIsTheOneThatKongRuns(t *testing.T) {
	configs, err := Configs([]byte(scattered), "kong.yml")
	require.NoError(t, err)
	for route, want := range map[string]string{
		"records": "everything", "search": "by-reference", "cart": "cart", "goods": "shop", "late": "shop",
	} {
		chosen, err := choose(configs, "kong.yml", route, routesOf([]byte(scattered)))
		if err != nil || chosen.Namespace != want {
			t.Errorf("route %s: %v (%v), want the config of namespace %s", route, chosen, err, want)
		}
	}
	_, err = choose(configs, "kong.yml", "", routesOf([]byte(scattered)))
	const all = "everything; route search; service shop; route cart of service shop; consumer acme"
	if err == nil || !strings.Contains(err.Error(), all) {
		t.Errorf("without a route: %v, want it to list the configs: %s", err, all)
	}
}
