package fieldschema

import (
	"strings"
	"testing"
)

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
