package gateway

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const full = `
services:
- name: up
  url: http://up.test:81/
  plugins: [{name: jwt}]
  routes:
  - name: plain
    paths: [/plain]
    plugins: [{name: rec, config: {n: 1, list: [a], deep: {x: null}, day: 2020-01-01}}]
routes:
- {name: lone, hosts: [h], strip_path: false}
consumers:
- username: alice
  custom_id: acme
  tags: ["org:acme"]
  keyauth_credentials: [{key: k1}]
  jwt_secrets: [{key: iss, secret: s}]
  plugins: [{name: rec}]
plugins:
- {name: rec}
- {name: other, route: lone, consumer: alice, enabled: false, instance_name: two}
`

func TestIDsAreThoseOfARealKong(t *testing.T) {
	c := deckConfig(t, full)
	for _, id := range []struct{ what, got, want string }{
		{"service", c.Services[0].ID, "dea4c45f-3d88-5461-8ebd-05ae5bbbf87a"},
		{"route", c.Routes[0].ID, "288d4164-d6e7-5b7d-8e98-2b6e078780fc"},
		{"consumer", c.Consumers[0].ID, "b32379d9-3d28-5683-a79c-72139be6e34f"},
		{"plugin", c.Plugins[0].ID, "55a067d9-54eb-5bb0-97c4-4fd5c85d9d09"},
	} {
		if id.got != id.want {
			t.Errorf("%s: id %s, Kong 3.9.3 gave %s", id.what, id.got, id.want)
		}
	}
}

func TestEntitiesGetKongsDefaults(t *testing.T) {
	c := deckConfig(t, full)
	wantService := &Service{
		ID: c.Services[0].ID, Name: "up", Protocol: "http", Host: "up.test", Port: 81,
		ReadTimeout: 60_000,
	}
	if !reflect.DeepEqual(c.Services[0], wantService) {
		t.Errorf("service %+v", c.Services[0])
	}
	plain, lone := c.Routes[0], c.Routes[1]
	if !plain.StripPath || lone.StripPath || len(plain.Protocols) != 2 {
		t.Errorf("routes %+v, %+v", plain, lone)
	}
	if plain.Service != c.Services[0] || lone.Service != nil {
		t.Error("routes do not point to their service")
	}
}

func TestPluginsOfEveryLevelHaveTheirScope(t *testing.T) {
	c := deckConfig(t, full)
	scopes := map[string][3]bool{}
	for _, p := range c.Plugins {
		scopes[p.Path] = [3]bool{p.Route != nil, p.Service != nil, p.Consumer != nil}
	}
	want := map[string][3]bool{
		"services[0].plugins[0]":           {false, true, false},
		"services[0].routes[0].plugins[0]": {true, false, false},
		"consumers[0].plugins[0]":          {false, false, true},
		"plugins[0]":                       {},
		"plugins[1]":                       {true, false, true},
	}
	if !reflect.DeepEqual(scopes, want) {
		t.Errorf("scopes %v", scopes)
	}
}

func TestConfigTreesHaveOnlyValuesOfLua(t *testing.T) {
	got := deckConfig(t, full).Plugins[0].Config
	want := map[string]any{"n": 1.0, "list": []any{"a"}, "deep": map[string]any{"x": nil}, "day": "2020-01-01"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("config %#v", got)
	}
}

func TestConfigsThatPluginsShareAreWrittenOnce(t *testing.T) {
	want := map[string]any{"list": []any{"a"}, "n": 2.0, "deep": map[string]any{"x": 1.0, "y": 3.0}}
	for how, text := range map[string]string{
		"by name": `
_plugin_configs: {base: {n: 1, list: [a], deep: {x: 1, y: 2}}}
plugins: [{name: rec, _config: base, config: {n: 2, deep: {y: 3}}}, {name: other, _config: base}]`,
		"by a merge key": `
plugins: [{name: other, config: &base {n: 1, list: [a], deep: &deep {x: 1, y: 2}}},
  {name: rec, config: {<<: *base, n: 2, deep: {<<: *deep, y: 3}}}]`,
	} {
		for _, p := range deckConfig(t, text).Plugins {
			if p.Name == "rec" && !reflect.DeepEqual(p.Config, want) {
				t.Errorf("%s: config %v, want %v", how, p.Config, want)
			} else if p.Name == "other" && p.Config.(map[string]any)["n"] != 1.0 {
				t.Errorf("%s: another plugin has %v", how, p.Config)
			}
		}
	}
}

func TestEveryFaultIsReportedWithItsPath(t *testing.T) {
	_, err := ParseConfig([]byte(`
_format_version: "1.1"
services:
- {name: a, protocol: tcp}
- {name: a, url: "::bad"}
- {name: b, url: "http://b/base"}
routes:
- {name: r}
- {name: q, paths: ["~/", x]}
consumers:
- {}
- {username: u, keyauth_credentials: [{}, {key: same}], jwt_secrets: [{key: k, secret: s, algorithm: RS256}, {}]}
- {username: v, keyauth_credentials: [{key: same}]}
plugins:
- {config: {a: 1, a: 2}}
- {name: p, route: missing, service: missing, consumer: none}
- {name: twice}
- {name: twice}
- {name: q, _config: missing}
`))
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("error %v", err)
	}
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.Path)
	}
	all := "\n" + strings.Join(paths, "\n") + "\n"
	for _, path := range []string{
		"_format_version", "services[0].host", "services[0].protocol", "services[1]",
		"services[1].url", "services[2].url", "routes[0]", "routes[1].paths[0]", "routes[1].paths[1]", "consumers[0]",
		"consumers[1].keyauth_credentials[0].key",
		"consumers[1].jwt_secrets[0].algorithm", "consumers[1].jwt_secrets[1].secret",
		"consumers[2].keyauth_credentials[0]", "plugins[0].name", "plugins[0].config",
		"plugins[1].route", "plugins[1].service", "plugins[1].consumer", "plugins[3]",
		"plugins[4]._config",
	} {
		if !strings.Contains(all, "\n"+path+"\n") {
			t.Errorf("no fault at %s", path)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestKeysThatAreNotSimulatedAreDeniedWithTheirLine(t *testing.T) {
	_, err := ParseConfig([]byte("_format_version: \"3.0\"\nservices:\n- {name: a, hots: b}\n"))
	if err == nil || !strings.Contains(err.Error(), "line 3: field hots not found") {
		t.Errorf("error %v", err)
	}
}
