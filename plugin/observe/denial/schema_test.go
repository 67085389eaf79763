package denial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// jsonSchema is a JSON Schema, as far as the published one uses the language. Reading rejects any other keyword, so
// nothing that is published goes unchecked.
type jsonSchema struct {
	Dialect     string `json:"$schema"`
	ID          string `json:"$id"`
	Title       string `json:"title"`
	Description string `json:"description"`

	Type  any   `json:"type"` // a name, or a list of names
	Const any   `json:"const"`
	Enum  []any `json:"enum"`

	Pattern   string `json:"pattern"`
	MinLength int    `json:"minLength"`
	MaxLength *int   `json:"maxLength"`
	Minimum   *int64 `json:"minimum"`

	Items       *jsonSchema `json:"items"`
	MinItems    int         `json:"minItems"`
	MaxItems    *int        `json:"maxItems"`
	UniqueItems bool        `json:"uniqueItems"`

	Properties           map[string]*jsonSchema `json:"properties"`
	AdditionalProperties *bool                  `json:"additionalProperties"`
	Required             []string               `json:"required"`
	DependentRequired    map[string][]string    `json:"dependentRequired"`
}

func readSchema(t testing.TB) *jsonSchema {
	t.Helper()
	text, err := os.ReadFile("../../../schema/denial_event.schema.json")
	require.NoError(t, err)
	var s jsonSchema
	decode(t, text, &s)
	return &s
}

// decoded is a JSON text with its numbers as they are written.
func decoded(t testing.TB, text []byte) (value any) {
	t.Helper()
	decode(t, text, &value)
	return value
}

func decode(t testing.TB, text []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(into), "%.2000s", text)
	_, err := decoder.Token()
	require.Equal(t, io.EOF, err, "%.2000s: something follows its end", text)
}

// check returns all faults of a decoded value.
func (s *jsonSchema) check(path string, value any) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, path+": "+fmt.Sprintf(format, args...)) }
	if s.Type != nil && !s.allows(value) {
		fault("%v is no %v", value, s.Type)
	}
	if s.Const != nil && !reflect.DeepEqual(value, s.Const) {
		fault("%v is not %v", value, s.Const)
	}
	if s.Enum != nil && !slices.ContainsFunc(s.Enum, func(v any) bool { return reflect.DeepEqual(v, value) }) {
		fault("%v is none of %v", value, s.Enum)
	}
	switch v := value.(type) {
	case string:
		if n := utf8.RuneCountInString(v); n < s.MinLength || (s.MaxLength != nil && n > *s.MaxLength) {
			fault("has %d characters", n)
		}
		if !regexp.MustCompile(s.Pattern).MatchString(v) {
			fault("%q does not match %s", v, s.Pattern)
		}
	case json.Number:
		if n, err := v.Int64(); s.Minimum != nil && (err != nil || n < *s.Minimum) {
			fault("%s is below %d, or no whole number", v, *s.Minimum)
		}
	case []any:
		faults = append(faults, s.checkItems(path, v)...)
	case map[string]any:
		faults = append(faults, s.checkProperties(path, v)...)
	}
	return faults
}

// allows reports whether a value is of one of the schema's types.
func (s *jsonSchema) allows(value any) bool {
	is := map[bool]string{true: "null"}[value == nil]
	switch v := value.(type) {
	case string:
		is = "string"
	case json.Number:
		if is = "number"; !strings.ContainsAny(v.String(), ".eE") {
			is = "integer"
		}
	case []any:
		is = "array"
	case map[string]any:
		is = "object"
	}
	if list, ok := s.Type.([]any); ok {
		return slices.Contains(list, any(is))
	}
	return s.Type == is
}

func (s *jsonSchema) checkItems(path string, items []any) (faults []string) {
	if len(items) < s.MinItems {
		faults = append(faults, path+": has too few items")
	}
	if s.MaxItems != nil && len(items) > *s.MaxItems {
		faults = append(faults, path+": has too many items")
	}
	for i, item := range items {
		faults = append(faults, s.Items.check(fmt.Sprintf("%s[%d]", path, i), item)...)
		if s.UniqueItems && slices.Contains(items[:i], item) {
			faults = append(faults, fmt.Sprintf("%s: has %v twice", path, item))
		}
	}
	return faults
}

func (s *jsonSchema) checkProperties(path string, object map[string]any) (faults []string) {
	required := slices.Clone(s.Required)
	for name, value := range object {
		required = append(required, s.DependentRequired[name]...)
		if property, ok := s.Properties[name]; ok {
			faults = append(faults, property.check(path+"."+name, value)...)
		} else if s.AdditionalProperties != nil && !*s.AdditionalProperties {
			faults = append(faults, path+"."+name+": is not published")
		}
	}
	for _, name := range required {
		if _, ok := object[name]; !ok {
			faults = append(faults, path+"."+name+": is missing")
		}
	}
	return faults
}

func TestTheSchemaRejectsWhatNoLineMaySay(t *testing.T) {
	published := readSchema(t)
	const good = `{"event":"rate_limit_denial","version":1,"id":"00c0ffee00c0ffee-1","count":1,"answers":0,` +
		`"first":"2000-01-01T00:00:00.000000Z","last":"2000-01-01T00:00:00.000000Z","mode":"enforce","reason":"quota"}`
	require.Empty(t, published.check("", decoded(t, []byte(good))), "the least line")
	for _, change := range []struct{ name, old, new string }{
		{"another event", "rate_limit_denial", "audit"},
		{"another version", `"version":1`, `"version":2`},
		{"no id", `"id":"00c0ffee00c0ffee-1",`, ``},
		{"a count of none", `"count":1`, `"count":0`},
		{"half a count", `"count":1`, `"count":1.5`},
		{"a count in words", `"count":1`, `"count":"one"`},
		{"a time of day", `2000-01-01T00:00:00.000000Z`, `00:00:00`},
		{"milliseconds", `00.000000Z`, `00.000Z`},
		{"an unknown mode", `"enforce"`, `"audit"`},
		{"an unknown reason", `"quota"`, `"counted"`},
		{"an unknown field", `"count"`, `"weather":"fine","count"`},
		{"an empty tenant", `"count"`, `"org":"","org_kind":"tenant","count"`},
		{"a tenant of no kind", `"count"`, `"org":"acme","count"`},
		{"a scope without its policy", `"count"`, `"scope":"tenant","count"`},
		{"a limit of nothing", `"count"`, `"limit":{"quantity":0,"window_seconds":1,"burst":1},"count"`},
		{"a limit without a window", `"count"`, `"limit":{"quantity":1,"burst":1},"count"`},
		{"a list with one name twice", `"count"`, `"mixed":["user","user"],"count"`},
		{
			"more ids than a line has", `"count"`,
			`"request_id":"a","more_request_ids":["` + strings.Repeat(`a","`, 9) + `a"],"count"`,
		},
		{"more ids without the first", `"count"`, `"more_request_ids":["a"],"count"`},
		{"a row of no policy", `"count"`, `"policy_id":7,"count"`},
		{"a row for a policy of the config", `"count"`, `"policy":"a","policy_id":0,"count"`},
		{"an empty list", `"count"`, `"truncated":[],"count"`},
	} {
		bad := strings.Replace(good, change.old, change.new, 1)
		if faults := published.check("", decoded(t, []byte(bad))); bad == good || len(faults) == 0 {
			t.Errorf("%s is accepted: %s", change.name, bad)
		}
	}
}
