package deckfile

import (
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

func TestSharedConfigsAreMergedAsDecKDoes(t *testing.T) {
	const shared = `{"deep":{"x":{"y":1},"z":2},"list":["a"],"n":1}`
	for text, want := range map[string]string{
		`{config: {n: 2}}`:                                       `{"n":2}`,
		`{_config: s}`:                                           shared,
		`{_config: s, config: ~}`:                                shared,
		`{_config: "", config: {n: 2}}`:                          `{"n":2}`,
		`{_config: s, config: {n: ~, deep: {x: {w: 3}}}}`:        `{"n":null,"deep":{"x":{"w":3,"y":1},"z":2},"list":["a"]}`,
		`{_config: s, config: {deep: ~, list: {a: 1}}}`:          `{"deep":null,"list":{"a":1},"n":1}`,
		`{_config: s, config: {<<: {n: 5}, deep: {<<: {z: 6}}}}`: `{"deep":{"z":6,"x":{"y":1}},"n":5,"list":["a"]}`,
		`{_config: s, config: [1]}`:                              `[1]`,
		`{_config: t}`:                                           `error _plugin_configs has no config "t"`,
		`{_config: list}`:                                        `error the config "list" of _plugin_configs must be a mapping`,
		`{_config: 5}`:                                           `error _config must be a string`,
		`{_config: {a: 1}}`:                                      `error _config must be a string`,
		`{_config: self, config: &c {a: *c}}`:                    `error has too many values`,
	} {
		configs := parse(t, `{s: {deep: {x: {y: 1}, z: 2}, list: [a], n: 1}, list: [1], self: &s {a: *s}}`)
		got, err := mergedEntry(configs, parse(t, text))
		if err != nil {
			got = "error " + err.Error()
		}
		if got != want && !(err != nil && strings.HasPrefix(got, want)) {
			t.Errorf("%s:\n%s, want\n%s", text, got, want)
		}
	}
	if _, err := mergedEntry(new(yaml.Node), parse(t, `{_config: t}`)); err == nil {
		t.Error("a document without _plugin_configs has the config t")
	}
}

func mergedEntry(configs, entry *yaml.Node) (string, error) {
	shared, err := Shared(configs, Get(entry, "_config"))
	if err != nil {
		return "", err
	}
	walk := NewWalk()
	merged, err := Merge(Get(entry, "config"), shared, walk)
	if err != nil {
		return "", err
	}
	config, err := Encode(merged, walk)
	return string(config.JSON), err
}
