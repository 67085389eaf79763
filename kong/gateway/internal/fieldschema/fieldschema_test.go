package fieldschema

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const everything = `{"name": "p", "fields": [
 {"protocols": {"type": "set", "required": true, "default": ["http"], "elements": {"type": "string", "one_of": ["http", "https"]}}},
 {"consumer": {"type": "foreign", "reference": "consumers", "eq": null}},
 {"config": {"type": "record", "required": true, "fields": [
  {"mode": {"type": "string", "required": true, "default": "a", "one_of": ["a", "b"]}},
  {"name": {"type": "string", "match": "^[%w_.%-]+$", "len_max": 8}},
  {"size": {"type": "integer", "gt": 0}},
  {"share": {"type": "number", "between": [0, 5]}},
  {"on": {"type": "boolean", "default": false}},
  {"tags": {"type": "set", "elements": {"type": "string"}, "default": []}},
  {"costs": {"type": "map", "keys": {"type": "string", "starts_with": "/"}, "values": {"type": "integer"}}},
  {"items": {"type": "array", "len_min": 1, "elements": {"type": "record", "fields": [
    {"id": {"type": "string", "required": true}}, {"n": {"type": "integer", "default": 7}}]}}},
  {"redis": {"type": "record", "required": true, "fields": [
    {"host": {"type": "string"}}, {"port": {"type": "integer", "default": 6379}},
    {"password": {"type": "string", "referenceable": true}}, {"user": {"type": "string"}}],
    "entity_checks": [{"mutually_required": ["user", "password"]}]}},
  {"other": {"type": "record", "fields": [{"x": {"type": "string", "default": "y"}}]}},
  {"fixed": {"type": "string", "one_of": ["k"], "err": "only k will do"}}],
  "entity_checks": [
   {"conditional": {"if_field": "mode", "if_match": {"eq": "b"}, "then_field": "size", "then_match": {"required": true}}},
   {"conditional_at_least_one_of": {"if_field": "mode", "if_match": {"one_of": ["b"]}, "then_at_least_one_of": ["redis.host", "items"]}},
   {"distinct": ["name", "fixed"]},
   {"mutually_exclusive": ["share", "costs"]}]}}]}`

func parsed(t *testing.T, schema string) *Schema {
	t.Helper()
	s, err := Parse([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tree(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDefaultsAreFilledInAndOptionalRecordsStayNil(t *testing.T) {
	got, faults := parsed(t, everything).Apply(tree(t, `{"items": [{"id": "i"}], "tags": ["a", "b", "a"]}`), nil, Scope{})
	if faults != nil {
		t.Fatal(faults)
	}
	want := tree(t, `{"mode": "a", "name": null, "size": null, "share": null, "on": false, "tags": ["a", "b"],
		"costs": null, "items": [{"id": "i", "n": 7}], "other": null, "fixed": null,
		"redis": {"host": null, "port": 6379, "password": null, "user": null}}`)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	bare := WithoutNulls(got)
	if want := tree(t, `{"mode": "a", "on": false, "tags": ["a", "b"], "items": [{"id": "i", "n": 7}], "redis": {"port": 6379}}`); !reflect.DeepEqual(bare, any(want)) {
		t.Errorf("without nulls %v", bare)
	}
}

func TestFaultsAreKongsTextsWithThePathToTheField(t *testing.T) {
	s := parsed(t, everything)
	for _, c := range []struct{ config, want string }{
		{`{"mode": "x"}`, "config.mode: expected one of: a, b"},
		{`{"mode": null}`, "config.mode: required field missing"},
		{`{"mode": 5}`, "config.mode: expected a string"},
		{`{"name": ""}`, "config.name: length must be at least 1"},
		{`{"name": "a b"}`, "config.name: invalid value: a b"},
		{`{"name": "abcdefghi"}`, "config.name: length must be at most 8"},
		{`{"size": 0}`, "config.size: value must be greater than 0"},
		{`{"size": 1.5}`, "config.size: expected an integer"},
		{`{"share": 6}`, "config.share: value should be between 0 and 5"},
		{`{"on": "yes"}`, "config.on: expected a boolean"},
		{`{"tags": "a"}`, "config.tags: expected a set"},
		{`{"tags": ["a", 3]}`, "config.tags[1]: expected a string"},
		{`{"costs": []}`, "config.costs: expected a map"},
		{`{"costs": {"a": 1}}`, `config.costs["a"]: should start with: /`},
		{`{"costs": {"/a": "1"}}`, `config.costs["/a"]: expected an integer`},
		{`{"items": []}`, "config.items: length must be at least 1"},
		{`{"items": [{}]}`, "config.items[0].id: required field missing"},
		{`{"items": [{"id": "a"}, {"id": "b", "x": 1}]}`, "config.items[1].x: unknown field"},
		{`{"redis": 3}`, "config.redis: expected a record"},
		{`{"redis": {"user": "u"}}`, "config.redis: all or none of these fields must be set: 'user', 'password'"},
		{`{"fixed": "z"}`, "config.fixed: only k will do"},
		{`{"unknown": 1}`, "config.unknown: unknown field"},
		{`{"share": 1, "costs": {"/a": 1}}`, "config: only one or none of these fields must be set: 'share', 'costs'"},
		{`{"name": "k", "fixed": "k"}`, "config: values of these fields must be distinct: 'name', 'fixed'"},
		{`{"mode": "b", "redis": {"host": "h"}}`, "config.size: required field missing; " +
			"config: failed conditional validation given value of field 'mode'"},
		{`{"mode": "b", "size": 1}`, "config: at least one of these fields must be non-empty: 'redis.host', 'items'"},
		{`{"size": "a", "on": 1}`, "config.size: expected an integer; config.on: expected a boolean"},
	} {
		_, faults := s.Apply(tree(t, c.config), nil, Scope{})
		var got []string
		for _, f := range faults {
			got = append(got, f.Path+": "+f.Message)
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.config, strings.Join(got, "; "), c.want)
		}
	}
}

func TestScopesAndProtocolsOfTheEntryAreChecked(t *testing.T) {
	s := parsed(t, everything)
	_, faults := s.Apply(nil, []string{"http", "tcp"}, Scope{Consumer: true})
	if len(faults) != 2 || faults[0].Path != "protocols[1]" || faults[1].Message != "value must be null" {
		t.Errorf("faults %v", faults)
	}
	if _, faults := s.Apply(nil, []string{"https"}, Scope{Route: true, Service: true}); faults != nil {
		t.Errorf("faults %v", faults)
	}
}

func TestVaultReferencesAreResolvedAndKept(t *testing.T) {
	s := parsed(t, everything)
	config, faults := s.Apply(tree(t, `{"redis": {"user": "{vault://env/u}", "password": "{vault://env/pw}"}}`), nil, Scope{})
	if faults != nil {
		t.Fatal(faults)
	}
	redis := s.Resolve(config, func(name string) string { return "<" + name + ">" })["redis"]
	want := tree(t, `{"host": null, "port": 6379, "user": "{vault://env/u}", "password": "<vault://env/pw>",
		"$refs": {"password": "{vault://env/pw}"}}`)
	if !reflect.DeepEqual(redis, any(want)) {
		t.Errorf("resolved %v", redis)
	}
}

func TestSchemasKongWouldRefuseAreRefused(t *testing.T) {
	field := func(definition string) string {
		return `{"name": "p", "fields": [{"config": {"type": "record", "fields": [{"f": ` + definition + `}]}}]}`
	}
	for schema, want := range map[string]string{
		`[`:                              "parse plugin schema",
		`{}`:                             "name: required",
		`{"name": "p", "fields": []}`:    `missing a record "config"`,
		`{"name": "p", "x": 1}`:          "x: unknown field",
		`{"name": "p"}`:                  "no 'fields' table",
		field(`{"type": "int"}`):         "config.f: invalid type: int",
		field(`{"type": "array"}`):       "needs elements",
		field(`3`):                       "config.f: expected a definition",
		field(`{"type":"string","x":1}`): `unknown attribute "x"`,
		field(`{"type":"string","description":"short"}`):                                    "description",
		field(`{"type":"string","match":"[a"}`):                                             "malformed pattern",
		field(`{"type":"string","match":"%"}`):                                              "malformed pattern",
		field(`{"type":"string","match_any":{"patterns":["a","%"]}}`):                       "malformed pattern",
		field(`{"type":"string","match_none":[{"pattern":"[","err":"e"}]}`):                 "malformed pattern",
		field(`{"type":"string","match":"%b()"}`):                                           "not simulated",
		field(`{"type":"record","fields":[{"a":{"type":"any"},"b":{"type":"any"}}]}`):       "one key",
		field(`{"type":"record","fields":[{"a":{"type":"any"}},{"a":{"type":"any"}}]}`):     "defined twice",
		field(`{"type":"record","fields":[],"entity_checks":[{"custom_entity_check":{}}]}`): "unknown check",
		field(`{"type":"record","fields":[],"entity_checks":[{"at_least_one_of":["a"]}]}`):  "not defined",
		field(`{"type":"record","fields":[],"entity_checks":[{"at_least_one_of":[]}]}`):     "names no fields",
	} {
		if _, err := Parse([]byte(schema)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", schema, err, want)
		}
	}
}

func TestLuaPatternsMatchAsInLua(t *testing.T) {
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"^abc$", "abc", true},
		{"^abc$", "xabc", false},
		{"b", "abc", true},
		{"", "", true},
		{"^%d+$", "0123", true},
		{"^%d+$", "", false},
		{"^%d*$", "", true},
		{"^%D$", "7", false},
		{"^[%w_.%-]+$", "a-b_c.1", true},
		{"^[%w_.%-]+$", "a b", false},
		{"^[^%s]+$", "ab", true},
		{"^[^%s]+$", "a b", false},
		{"^a-b$", "aaab", true},
		{"^a?b$", "ab", true},
		{"^a?b$", "b", true},
		{"^a?b$", "aab", false},
		{"^(a+)(b+)$", "aab", true},
		{"^[a-c]+$", "abcd", false},
		{"^[]]$", "]", true},
		{"^.$", "x", true},
		{"^.$", "xy", false},
		{"^%u%l%x%p%a%c$", "Aaf!z\n", true},
		{"^a{1,3}$", "aa", false},
		{"^a{1,3}$", "a{1,3}", true},
		{"^[a-]$", "-", true},
		{"a.*b.*c", "xxaxxbxxc", true},
		{"a$b", "a$b", true},
	} {
		if got := luaMatch(c.s, c.pattern); got != c.want {
			t.Errorf("match(%q, %q) = %v", c.s, c.pattern, got)
		}
	}
}

func FuzzLuaMatchNeverPanics(f *testing.F) {
	f.Add("abc", "^[a-c]+$")
	f.Add("%", "[%")
	f.Fuzz(func(_ *testing.T, s, pattern string) {
		if len(s)+len(pattern) < 40 && checkPattern(pattern) == nil {
			luaMatch(s, pattern)
		}
	})
}
