package fieldschema

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const everything = `{"name": "p", "fields": [
 {"protocols": {"type": "set", "required": true, "default": ["http"],
   "elements": {"type": "string", "one_of": ["http", "https"]}}},
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
  {"other": {"type": "record", "required": false, "fields": [{"x": {"type": "string", "default": "y"}}]}},
  {"implicit": {"type": "record", "fields": [{"x": {"type": "string", "default": "y"}}]}},
  {"fixed": {"type": "string", "one_of": ["k"], "err": "only k will do"}}],
  "entity_checks": [
   {"conditional": {"if_field": "mode", "if_match": {"eq": "b"},
     "then_field": "size", "then_match": {"required": true}}},
   {"conditional_at_least_one_of": {"if_field": "mode", "if_match": {"one_of": ["b"]},
     "then_at_least_one_of": ["redis.host", "items"]}},
   {"distinct": ["name", "fixed"]},
   {"mutually_exclusive": ["share", "costs"]}]}}]}`

func parsed(t *testing.T, schema string) *Schema {
	t.Helper()
	s, err := Parse([]byte(schema))
	require.NoError(t, err)
	return s
}

func tree(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	return out
}

// denied returns the faults of an entity in one line, "" if there are none.
func denied(t *testing.T, s *Schema, entity map[string]any) string {
	t.Helper()
	_, err := s.Insert(entity)
	if err == nil {
		return ""
	}
	var violation *Violation
	if !errors.As(err, &violation) {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range violation.Faults() {
		lines = append(lines, f.Path+": "+f.Message)
	}
	return strings.Join(lines, "; ")
}

func TestThePluginEntityIsJudgedAsAWhole(t *testing.T) {
	s := parsed(t, everything)
	const id = "0b7b1f4e-6b1a-4c8e-9d55-0f6f7e1c2a3b"
	for _, c := range []struct{ entity, want string }{
		{`{"name": "p"}`, ""},
		{`{"name": "p", "protocols": ["https"], "route": {"id": "` + id + `"}, "service": null}`, ""},
		{`{"name": "p", "tags": ["a b", "\u00e9"], "instance_name": "x-1", "enabled": false}`, ""},
		{`{}`, "name: required field missing"},
		{`{"name": null}`, "name: required field missing"},
		{`{"name": "q"}`, "name: plugin 'q' not enabled; add it to the 'plugins' configuration property"},
		{`{"name": "p", "nam": 1}`, "nam: unknown field"},
		{
			`{"name": "p", "enabled": null, "protocols": ["tcp"]}`,
			"enabled: required field missing; protocols[0]: expected one of: http, https",
		},
		{`{"name": "p", "protocols": []}`, ""},
		{`{"name": "p", "consumer": {"id": "` + id + `"}}`, "consumer: value must be null"},
		{`{"name": "p", "route": {"id": "r"}}`, "route.id: expected a valid UUID"},
		{`{"name": "p", "route": {}}`, "route.id: missing primary key"},
		{
			`{"name": "p", "tags": ["a,b", ""], "instance_name": "a b"}`,
			"instance_name: invalid value 'a b': the only accepted ascii characters are alphanumerics or ., -, _, and ~; " +
				"tags[0]: invalid tag 'a,b': expected printable ascii (except `,` and `/`) or valid utf-8 sequences; " +
				"tags[1]: length must be at least 1",
		},
	} {
		if got := denied(t, s, tree(t, c.entity)); got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.entity, got, c.want)
		}
	}
}

// rules covers what the recorded schemas do not. The expectations are read off kong/db/schema of Kong 3.9.3.
const rules = `{"name": "p", "fields": [{"config": {"type": "record", "fields": [
 {"mode": {"type": "string", "one_of": ["a", "b", "c"]}}, {"x": {"type": "integer"}}, {"y": {"type": "string"}},
 {"r": {"type": "record", "required": false, "fields": [{"u": {"type": "string"}}, {"v": {"type": "string"}}]}},
 {"list": {"type": "array", "elements": {"type": "record", "fields": [
   {"inner": {"type": "record", "fields": [{"must": {"type": "string", "required": true}}]}}]}}},
 {"fn": {"type": "function"}}, {"nothing": {"type": "string", "eq": null}}, {"some": {"type": "string", "ne": null}},
 {"re": {"type": "string", "is_regex": true}}, {"half": {"type": "number", "between": [0.5, 1.5]}},
 {"m": {"type": "map", "keys": {"type": "string"}, "values": {"type": "string", "len_max": 2}}},
 {"l": {"type": "array", "elements": {"type": "string", "match_any": {"patterns": ["a"]}}}}],
 "entity_checks": [
  {"conditional_at_least_one_of": {"if_field": "mode", "if_match": {"eq": "a"}, "then_at_least_one_of": ["x", "y"]}},
  {"conditional_at_least_one_of": {"if_field": "mode", "if_match": {"eq": "b"},
    "then_at_least_one_of": ["r.u", "r.v"], "then_err": "b needs %s, 100%%"}}]}}]}`

func TestRulesOfKongsSchemaLanguage(t *testing.T) {
	s := parsed(t, rules)
	for _, c := range []struct{ config, want string }{
		{`{"some": "s", "list": [{}, {"inner": null}, {"inner": {"must": "m"}}], "r": false}`, ""},
		{`{"some": "s", "list": [{"inner": {}}]}`, "config.list[0].inner.must: required field missing"},
		{`{}`, "config.some: value must not be null"},
		{`{"some": "s", "mode": "a"}`, "config: at least one of these fields must be non-empty: 'x', 'y'"},
		{`{"some": "s", "mode": "b"}`, "config: b needs 'r.u', 'r.v', 100%"},
		{`{"some": "s", "mode": "c"}`, ""},
		{
			`{"some": "s", "fn": "f", "nothing": "n"}`,
			"config.fn: expected a function; config.nothing: value must be null",
		},
		{`{"some": "s", "half": 2}`, "config.half: value should be between 0 and 1"},
		{`{"some": "s", "m": {}, "l": {}}`, ""},
		{`{"some": "s", "m": ["a"], "l": ["b"]}`, "config.l[0]: invalid value: b; config.m: expected a string"},
		{`{"some": "s", "updated_at": 1}`, ""},
		{`{"some": "s", "re": "^(?!a)(?<n>b)++(?>c)\\1$"}`, ""},
		{`{"some": "s", "re": "(?=a"}`, "config.re: not a valid regex: (?=a"},
		{`{"some": "s", "re": "\\(?=a)"}`, "config.re: not a valid regex: \\(?=a)"},
	} {
		if got := denied(t, s, map[string]any{"name": "p", "config": tree(t, c.config)}); got != c.want {
			t.Errorf("%s:\n got  %s\n want %s", c.config, got, c.want)
		}
	}
}

func TestPatchMergesRecordsAndWordsItsFaultsForUpdates(t *testing.T) {
	s := parsed(t, rules)
	kept, err := s.Insert(map[string]any{
		"name": "p", "tags": []any{"t"}, "config": tree(t, `{"some": "s", "r": {"u": "1"}, "l": ["a"]}`),
	})
	require.NoError(t, err)
	updated, err := s.Update(kept, tree(t, `{"enabled": false, "config": {"r": {"v": "2"}, "l": ["ab", "ac"]}}`))
	require.NoError(t, err)
	config := updated["config"].(map[string]any)
	merged := tree(t, `{"r": {"u": "1", "v": "2"}, "l": ["ab", "ac"], "some": "s"}`)
	if !reflect.DeepEqual(config["r"], merged["r"]) || !reflect.DeepEqual(config["l"], merged["l"]) ||
		config["some"] != "s" || updated["enabled"] != false {
		t.Errorf("updated %v", updated)
	}
	_, err = s.Update(kept, tree(t, `{"config": {"mode": "a", "r": null}}`))
	const want = "schema violation (config.@entity: {\n" +
		"  \"when updating, at least one of these fields must be non-empty: 'x', 'y'\"\n})"
	if err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
}

func TestWhatMakesKongsCodeFailIsAnErrorOfItsOwn(t *testing.T) {
	s := parsed(t, rules)
	for _, config := range []string{`{"some": "s", "r": 5}`, `["x"]`, `{"some": "s", "r": true, "mode": "b"}`} {
		var value any
		require.NoError(t, json.Unmarshal([]byte(config), &value))
		_, err := s.Insert(map[string]any{"name": "p", "config": value})
		if !errors.Is(err, ErrRaised) {
			t.Errorf("%s: error %v", config, err)
		}
	}
	got := denied(t, s, tree(t, `{"name": "p", "config": {"some": "s", "r": "5"}}`))
	if got != "config.r: expected a record" {
		t.Errorf("a string for a record: %s", got)
	}
}

func TestSchemasThatKongDoesNotLoadAreDenied(t *testing.T) {
	field := func(definition string) string {
		return `{"name": "p", "fields": [{"config": {"type": "record", "fields": [{"f": ` + definition + `}]}}]}`
	}
	for _, c := range []struct{ schema, want string }{
		{`[`, "parse plugin schema"},
		{`{}`, "name: required"},
		{`{"name": "p", "fields": []}`, `missing a record "config"`},
		{`{"name": "p", "x": 1}`, "x: unknown field"},
		{`{"name": "p"}`, "must declare 'fields'"},
		{field(`{"type": "int"}`), "config.f: invalid type: int"},
		{field(`{"type": "array"}`), "must declare 'elements'"},
		{field(`3`), "config.f: expected a definition"},
		{field(`{"type":"string","x":1}`), `unknown attribute "x"`},
		{field(`{"type":"string","description":"short"}`), "description"},
		{field(`{"type":"string","match":"[a"}`), "malformed pattern"},
		{field(`{"type":"string","match":"%"}`), "malformed pattern"},
		{field(`{"type":"string","match_any":{"patterns":["a","%"]}}`), "malformed pattern"},
		{field(`{"type":"string","match_none":[{"pattern":"[","err":"e"}]}`), "malformed pattern"},
		{field(`{"type":"string","match":"%b()"}`), "not simulated"},
		{field(`{"type":"record","fields":[{"a":{"type":"string"},"b":{"type":"string"}}]}`), "one key"},
		{field(`{"type":"record","fields":[{"a":{"type":"string"}},{"a":{"type":"string"}}]}`), "defined twice"},
		{field(`{"type":"record","fields":[],"entity_checks":[{"custom_entity_check":{}}]}`), "unknown check"},
		{field(`{"type":"record","fields":[],"entity_checks":[{"at_least_one_of":["a"]}]}`), "not defined"},
		{field(`{"type":"record","fields":[],"entity_checks":[{"at_least_one_of":[]}]}`), "names no fields"},
		{field(`{"type":"any"}`), "invalid type: any"},
		{field(`{"type":"string","between":[1,2]}`), "cannot have attribute 'between'"},
		{field(`{"type":"integer","match":"a"}`), "cannot have attribute 'match'"},
		{field(`{"type":"boolean","one_of":[true]}`), "cannot have attribute 'one_of'"},
		{field(`{"type":"integer","between":[1]}`), "between: length must be 2"},
		{field(`{"type":"string","required":"yes"}`), "required: expected a boolean"},
		{field(`{"type":"string","len_max":1.5}`), "len_max: expected an integer"},
		{field(`{"type":"string","nilable":true}`), `unknown attribute "nilable"`},
		{field(`{"type":"string","custom_validator":true}`), `unknown attribute "custom_validator"`},
		{field(`{"type":"string","err":""}`), "err: length must be at least 1"},
		{field(`{"type":"integer","default":"x"}`), "default: expected an integer"},
		{field(`{"type":"string","one_of":["a"],"default":"b"}`), "default: expected one of: a"},
		{field(`{"type":"array","elements":{"type":"string"},"default":[1]}`), "expected a string"},
		{field(`{"type":"string","deprecation":{"message":"m"}}`), "not simulated"},
		{field(`{"type":"set","elements":{"type":"string"},"one_of":["a"]}`), "cannot have attribute 'one_of'"},
		{field(`{"type":"json","json_schema":{"inline":{}}}`), "not simulated"},
		{
			`{"name":"p","fields":[{"config":{"type":"record","fields":[]}},{"x":{"type":"string"}}]}`,
			"cannot create a new field",
		},
		{`{"name":"p","fields":[{"config":{"type":"record","fields":[]}},{"tags":{"type":"string"}}]}`, "cannot change type"},
	} {
		if _, err := Parse([]byte(c.schema)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.schema, err, c.want)
		}
	}
}

func TestSchemasKongLoadsAreParsed(t *testing.T) {
	for _, definition := range []string{
		`{"type":"function"}`,
		`{"type":"record","fields":{},"entity_checks":[]}`,
		`{"type":"record","abstract":true}`,
		`{"type":"string","description":"ten bytes.","unique":true}`,
		`{"type":"number","default":null}`,
	} {
		schema := `{"name": "p", "fields": [{"config": {"type": "record", "fields": [{"f": ` + definition + `}]}}]}`
		if _, err := Parse([]byte(schema)); err != nil {
			t.Errorf("%s: %v", definition, err)
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

func TestMessagesQuoteAsPenlightDoes(t *testing.T) {
	faults := func(entries map[any]any) *table { return &table{entries: entries} }
	for _, c := range []struct {
		faults *table
		want   string
	}{
		{faults(map[any]any{"a": "b"}), "{\n  a = \"b\"\n}"},
		{
			faults(map[any]any{1: "x", 3: "z", "end": "k", "a-b": `q"\`}),
			"{\n  \"x\",\n  [\"a-b\"] = \"q\\\"\\\\\",\n  [\"end\"] = \"k\",\n  [3] = \"z\"\n}",
		},
		{faults(map[any]any{"a": "x]"}), "{\n  a = [=[x]]=]\n}"},
		{faults(map[any]any{"a": "x\ny"}), "{\n  a = [[x\ny]]\n}"},
		{faults(map[any]any{"a": "[==[x"}), "{\n  a = [===[[==[x]===]\n}"},
	} {
		if got := pretty(c.faults); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}
