// Package fieldschema judges plugin entities by schemas written in Kong's schema language, as a Kong 3.9 does. It
// returns the entity as Kong stores it, with all defaults, or the Admin API's error with its code, message and fields.
// It resolves vault references. It implements the part of the language that travels as JSON.
//
// An entity that makes Kong's own code fail has a verdict too: [ErrRaised].
package fieldschema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Schema holds a plugin's schema. Parse builds it; it is not changed afterwards and may be used by several goroutines.
type Schema struct {
	name   string
	entity *field
}

// field holds the definition of one field: its attributes as written, and the compiled fields and checks in them.
type field struct {
	name     string
	kind     string
	attrs    map[string]any
	fields   []*field
	elements *field
	keys     *field
	values   *field
	checks   []check
	custom   func(string) string // a rule that Kong has in code; returns the message of a fault
}

// Parse reads a schema: {"name": …, "fields": [{"config": {…}}, …]}. A schema that Kong does not load is an error
// with the path of the field.
func Parse(raw []byte) (*Schema, error) {
	var document map[string]any
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, fmt.Errorf("parse plugin schema: %w", err)
	}
	name, ok := document["name"].(string)
	if !ok || name == "" {
		return nil, fmt.Errorf("plugin schema: name: required field missing")
	}
	s := &Schema{name: name}
	if err := s.compile(document); err != nil {
		return nil, fmt.Errorf("plugin schema %s: %w", name, err)
	}
	return s, nil
}

func (s *Schema) compile(document map[string]any) (err error) {
	defer recoverRaised(&err) // a default that makes Kong's own code fail
	for _, key := range sortedKeys(document) {
		if !slices.Contains([]string{"name", "fields", "entity_checks"}, key) {
			return fmt.Errorf("%s: unknown field", key)
		}
	}
	record := maps.Clone(document)
	record["type"] = "record"
	delete(record, "name")
	own, err := compileFields(record)
	if err != nil {
		return err
	}
	if config := own.child("config"); config == nil || config.kind != "record" {
		return fmt.Errorf("missing a record \"config\"")
	}
	own.requireRecords()
	if s.entity, err = newEntity(own); err != nil {
		return err
	}
	s.entity.checks, err = s.entity.compileChecks("", document["entity_checks"])
	return err
}

// compileFields compiles the fields of a schema without its entity checks, which may name Kong's own fields too.
func compileFields(record map[string]any) (*field, error) {
	delete(record, "entity_checks")
	return compile("", "", record)
}

// Name returns the plugin's name.
func (s *Schema) Name() string { return s.name }

func compile(path, name string, attrs map[string]any) (*field, error) {
	f := &field{name: name, attrs: maps.Clone(attrs)}
	f.kind, _ = attrs["type"].(string)
	if err := checkAttributes(path, f.kind, attrs); err != nil {
		return nil, err
	}
	if err := f.compileChildren(path); err != nil {
		return nil, err
	}
	if value, has := attrs["default"]; has {
		if fault := f.validate(fromJSON(value)); fault != nil {
			return nil, fmt.Errorf("%s: default: %v", path, toJSON(fault))
		}
	}
	var err error
	f.checks, err = f.compileChecks(path, attrs["entity_checks"])
	return f, err
}

func (f *field) compileChildren(path string) (err error) {
	inner := func(attr string) *field {
		attrs, ok := f.attrs[attr].(map[string]any)
		if !ok || err != nil {
			return nil
		}
		required := maps.Clone(attrs)
		required["required"] = true // Kong demands every element of a list, and every key and value of a map
		var c *field
		c, err = compile(path+"."+attr, "", required)
		return c
	}
	f.elements, f.keys, f.values = inner("elements"), inner("keys"), inner("values")
	if err != nil || f.kind != "record" {
		return err
	}
	for i, item := range asList(f.attrs["fields"]) {
		if err := f.compileField(path, i, item); err != nil {
			return err
		}
	}
	return nil
}

func (f *field) compileField(path string, index int, item any) error {
	entry, ok := item.(map[string]any)
	if !ok || len(entry) != 1 {
		return fmt.Errorf("%s.fields[%d]: expected an object with one key", path, index)
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
	return nil
}

// child returns a record's field by its name, or nil.
func (f *field) child(name string) *field {
	for _, c := range f.fields {
		if c.name == name {
			return c
		}
	}
	return nil
}

// childAt returns the field at a dotted name, or nil.
func (f *field) childAt(name string) *field {
	for part := range strings.SplitSeq(name, ".") {
		if f = f.child(part); f == nil {
			return nil
		}
	}
	return f
}

// isSet reports whether the field has an attribute with any value but false.
func (f *field) isSet(attr string) bool {
	value, has := f.attrs[attr]
	return has && value != false
}

func (f *field) isRequired() bool { return f.attrs["required"] == true }

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
