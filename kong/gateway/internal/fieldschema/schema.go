// Package fieldschema applies plugin schemas written in Kong's schema language:
// it fills in defaults, checks values and cross-field rules with Kong's error
// texts, and resolves vault references. It knows the language (the subset that
// can travel as JSON), no particular plugin, and nothing of decK or HTTP.
//
// Values are what Lua would hold: nil, bool, float64, string, []any and
// map[string]any.
package fieldschema

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Schema is a plugin's schema. Parse builds it; it is not changed afterwards
// and may be used by several goroutines.
type Schema struct {
	name   string
	record *field
}

// field is one field's definition: attributes as written, children compiled.
type field struct {
	name     string
	kind     string
	attrs    map[string]any
	fields   []*field
	elements *field
	keys     *field
	values   *field
	checks   []check
}

// check is one entry of entity_checks.
type check struct {
	name string
	arg  any
}

// Fault is a value that the schema refuses; Path leads to it from the plugin,
// such as "config.tiers[1].name".
type Fault struct {
	Path, Message string
}

var attributes = map[string]bool{
	"type": true, "required": true, "default": true, "description": true, "nilable": true, "auto": true,
	"elements": true, "keys": true, "values": true, "fields": true, "entity_checks": true, "abstract": false,
	"referenceable": true, "encrypted": true, "indexed": true, "unique": true, "legacy": true, "immutable": true,
	"reference": true, "on_delete": true, "err": true, "eq": true, "ne": true, "gt": true, "between": true,
	"len_eq": true, "len_min": true, "len_max": true, "match": true, "not_match": true, "match_all": true,
	"match_none": true, "match_any": true, "starts_with": true, "one_of": true, "not_one_of": true, "contains": true,
	"is_regex": true, "timestamp": true, "uuid": true, "mutually_exclusive_subsets": true, "examples": true,
}

var kinds = []string{"array", "set", "string", "number", "boolean", "integer", "foreign", "map", "record", "any"}

// Parse reads a schema: {"name": …, "fields": [{"config": {…}}, …]}. What
// Kong's own schema of schemas would refuse is an error with the field's path.
func Parse(raw []byte) (*Schema, error) {
	var document map[string]any
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("parse plugin schema: %w", err)
	}
	name, ok := document["name"].(string)
	if !ok || name == "" {
		return nil, fmt.Errorf("plugin schema: name: required field missing")
	}
	for _, key := range sortedKeys(document) {
		if !slices.Contains([]string{"name", "fields", "entity_checks"}, key) {
			return nil, fmt.Errorf("plugin schema %s: %s: unknown field", name, key)
		}
	}
	document["type"] = "record"
	delete(document, "name")
	record, err := compile("", "", document)
	if err != nil {
		return nil, fmt.Errorf("plugin schema %s: %w", name, err)
	}
	config := record.child("config")
	if config == nil || config.kind != "record" {
		return nil, fmt.Errorf("plugin schema %s: missing a record \"config\"", name)
	}
	return &Schema{name: name, record: record}, nil
}

// Name is the plugin's name.
func (s *Schema) Name() string { return s.name }

func compile(path, name string, attrs map[string]any) (*field, error) {
	f := &field{name: name, attrs: attrs}
	f.kind, _ = attrs["type"].(string)
	if !slices.Contains(kinds, f.kind) {
		return nil, fmt.Errorf("%s: invalid type: %v", path, attrs["type"])
	}
	for _, key := range sortedKeys(attrs) {
		if !attributes[key] {
			return nil, fmt.Errorf("%s: unknown attribute %q", path, key)
		}
	}
	if text, ok := attrs["description"].(string); ok && (len(text) < 10 || len(text) > 500) {
		return nil, fmt.Errorf("%s: description: length must be 10 to 500", path)
	}
	for _, pattern := range patternsOf(attrs) {
		if err := checkPattern(pattern); err != nil {
			return nil, fmt.Errorf("%s: pattern %q: %w", path, pattern, err)
		}
	}
	if err := f.compileChildren(path); err != nil {
		return nil, err
	}
	return f, f.compileChecks(path)
}

// patternsOf are all Lua patterns among a field's attributes.
func patternsOf(attrs map[string]any) []string {
	var all []string
	for _, attr := range []string{"match", "not_match"} {
		if pattern, ok := attrs[attr].(string); ok {
			all = append(all, pattern)
		}
	}
	for _, attr := range []string{"match_all", "match_none"} {
		for _, item := range list(attrs[attr]) {
			rule, _ := item.(map[string]any)
			all = append(all, text(rule["pattern"]))
		}
	}
	anyOf, _ := attrs["match_any"].(map[string]any)
	return append(all, words(anyOf["patterns"])...)
}

func (f *field) compileChildren(path string) (err error) {
	child := func(attr string) *field {
		if err != nil {
			return nil
		}
		attrs, ok := f.attrs[attr].(map[string]any)
		if !ok {
			err = fmt.Errorf("%s: a %s needs %s", path, f.kind, attr)
			return nil
		}
		var c *field
		c, err = compile(path+"."+attr, "", withRequired(attrs))
		return c
	}
	switch f.kind {
	case "array", "set":
		f.elements = child("elements")
	case "map":
		f.keys, f.values = child("keys"), child("values")
	case "record":
		return f.compileFields(path)
	}
	return err
}

func (f *field) compileFields(path string) error {
	list, ok := f.attrs["fields"].([]any)
	if !ok {
		return fmt.Errorf("%s: error in schema definition: no 'fields' table", path)
	}
	for i, item := range list {
		entry, ok := item.(map[string]any)
		if !ok || len(entry) != 1 {
			return fmt.Errorf("%s.fields[%d]: expected an object with one key", path, i)
		}
		for name, value := range entry {
			at := strings.TrimPrefix(path+"."+name, ".")
			attrs, ok := value.(map[string]any)
			if !ok {
				return fmt.Errorf("%s: expected a definition", at)
			}
			if f.child(name) != nil {
				return fmt.Errorf("%s: defined twice", at)
			}
			c, err := compile(at, name, attrs)
			if err != nil {
				return err
			}
			f.fields = append(f.fields, c)
		}
	}
	return nil
}

func (f *field) compileChecks(path string) error {
	list, _ := f.attrs["entity_checks"].([]any)
	for i, item := range list {
		entry, ok := item.(map[string]any)
		if !ok || len(entry) != 1 {
			return fmt.Errorf("%s.entity_checks[%d]: expected an object with one key", path, i)
		}
		for name, arg := range entry {
			c := check{name: name, arg: arg}
			if err := f.checkable(c); err != nil {
				return fmt.Errorf("%s.entity_checks[%d]: %w", path, i, err)
			}
			f.checks = append(f.checks, c)
		}
	}
	return nil
}

// child is a record's field by its name; nil when there is none.
func (f *field) child(name string) *field {
	for _, c := range f.fields {
		if c.name == name {
			return c
		}
	}
	return nil
}

// at follows a dotted name through records.
func (f *field) at(name string) *field {
	for part := range strings.SplitSeq(name, ".") {
		if f = f.child(part); f == nil {
			return nil
		}
	}
	return f
}

func (f *field) is(attr string) bool {
	set, _ := f.attrs[attr].(bool)
	return set
}

// withRequired is an element's definition: Kong demands every element of a
// list and every key and value of a map.
func withRequired(attrs map[string]any) map[string]any {
	return merged(attrs, map[string]any{"required": true})
}

func merged(base, over map[string]any) map[string]any {
	out := make(map[string]any, len(base)+len(over))
	for key, value := range base {
		out[key] = value
	}
	for key, value := range over {
		out[key] = value
	}
	return out
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
