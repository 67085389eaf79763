package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// field is one field of the Kong schema, with the attributes that the generator writes. Its methods follow the checks
// of Kong (kong/db/schema), so Kong and Parse accept the same values, except where Parse has more checks.
type field struct {
	Type          string
	Description   string
	Required      bool
	Default       json.RawMessage
	OneOf         []string `json:"one_of"`
	Between       []int64
	Eq            json.RawMessage
	Match         string
	MatchAny      *patternList `json:"match_any"`
	LenMin        *int         `json:"len_min"`
	LenMax        *int         `json:"len_max"`
	Err           string
	Referenceable bool
	Encrypted     bool
	Elements      *field
	Keys          *field
	Values        *field
	Fields        []namedField
	EntityChecks  []entityCheck `json:"entity_checks"`

	patterns     []func() *regexp.Regexp // of Match or MatchAny, compiled when one is needed
	defaultValue *node
	names        []string // of Fields
}

type patternList struct {
	Patterns []string
	Err      string
}

// namedField is an entry of a record's fields, in Kong's form: an object with one key.
type namedField struct {
	name string
	*field
}

func (f *namedField) UnmarshalJSONFrom(from *jsontext.Decoder) error {
	var entry map[string]*field
	if err := jsonv2.UnmarshalDecode(from, &entry); err != nil {
		return err
	}
	if len(entry) != 1 {
		return fmt.Errorf("a field entry has %d keys, want 1", len(entry))
	}
	for name, inner := range entry {
		f.name, f.field = name, inner
	}
	return nil
}

// entityCheck is a rule over several fields of one record; exactly one member is set.
type entityCheck struct {
	AtLeastOneOf            []string     `json:"at_least_one_of"`
	OnlyOneOf               []string     `json:"only_one_of"`
	MutuallyRequired        []string     `json:"mutually_required"`
	MutuallyExclusive       []string     `json:"mutually_exclusive"`
	Conditional             *conditional `json:"conditional"`
	ConditionalAtLeastOneOf *conditional `json:"conditional_at_least_one_of"`
}

type conditional struct {
	IfField          string   `json:"if_field"`
	IfMatch          *field   `json:"if_match"`
	ThenField        string   `json:"then_field"`
	ThenMatch        *field   `json:"then_match"`
	ThenAtLeastOneOf []string `json:"then_at_least_one_of"`
	ThenErr          string   `json:"then_err"`
}

// unmarshalSchema decodes a part of a schema. Version 2 reads each field once, however deep it is.
func unmarshalSchema(text []byte, to any) error {
	return jsonv2.Unmarshal(text, to, jsonv2.MatchCaseInsensitiveNames(true))
}

// configField is the record of the plugin's config, from the embedded schema.
var configField = sync.OnceValue(func() *field {
	var document struct{ Fields []namedField }
	if err := unmarshalSchema(kongSchema, &document); err != nil {
		panic(fmt.Sprintf("schema: the embedded Kong schema cannot be read: %v", err))
	}
	for _, f := range document.Fields {
		if f.name == "config" {
			f.prepare()
			return f.field
		}
	}
	panic("schema: the embedded Kong schema has no config")
})

// prepare sets the patterns and decodes the defaults of f and of all fields inside it.
func (f *field) prepare() {
	var patterns []string
	if f.Match != "" {
		patterns = append(patterns, f.Match)
	}
	if f.MatchAny != nil {
		patterns = append(patterns, f.MatchAny.Patterns...)
	}
	for _, pattern := range patterns {
		f.patterns = append(f.patterns, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) }))
	}
	if f.Default != nil {
		f.defaultValue, _ = decodeDocument(f.Default)
	}
	for _, inner := range []*field{f.Elements, f.Keys, f.Values} {
		if inner != nil {
			inner.prepare()
		}
	}
	for _, inner := range f.Fields {
		f.names = append(f.names, inner.name)
		inner.prepare()
	}
}

func (f *field) field(name string) *field {
	for _, inner := range f.Fields {
		if inner.name == name {
			return inner.field
		}
	}
	return nil
}
