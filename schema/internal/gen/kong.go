package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

const pluginName = "tenant-rate-limiting"

// object is a JSON object that keeps the order of its members, so that the generated file reads like the source.
type object []member

type member struct {
	key   string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(m.key) + ":")
		if err := writeValue(&b, m.value); err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o object) has(key string) bool {
	return slices.ContainsFunc(o, func(m member) bool { return m.key == key })
}

// writeValue writes v without escaping <, > and &, which descriptions contain.
func writeValue(b *bytes.Buffer, v any) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

func kongSchema(s *source, root *record) ([]byte, error) {
	config, err := s.kongRecord(root, "")
	if err != nil {
		return nil, err
	}
	config = append(config, member{"required", true})
	protocols := []string{"grpc", "grpcs", "http", "https"}
	document := object{
		{"name", pluginName},
		{"fields", []object{
			{{"protocols", object{
				{"type", "set"},
				{"description", "The protocols of the requests that the plugin may run for. Default: all that it supports."},
				{"required", true},
				{"default", protocols},
				{"elements", object{{"type", "string"}, {"one_of", protocols}}},
			}}},
			{{"config", config}},
		}},
	}
	return indentedJSON(document)
}

func indentedJSON(document object) ([]byte, error) {
	var compact, indented bytes.Buffer
	if err := writeValue(&compact, document); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	if err := json.Indent(&indented, compact.Bytes(), "", " "); err != nil {
		return nil, fmt.Errorf("indent schema: %w", err)
	}
	return indented.Bytes(), nil
}

// kongRecord returns r as a Kong record. The tags of the field that contains the record may narrow one of its fields:
// a tag named after that field replaces its constraints.
func (s *source) kongRecord(r *record, narrowed reflect.StructTag) (object, error) {
	fields := []object{}
	for _, f := range r.fields {
		attributes, err := s.kongField(f, narrowed.Get(f.name))
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", r.name, f.name, err)
		}
		fields = append(fields, object{{f.name, attributes}})
	}
	result := object{{"type", "record"}, {"fields", fields}}
	var checks []object
	for _, line := range r.checks {
		check, err := entityCheck(line)
		if err != nil {
			return nil, fmt.Errorf("%s: //kong:check %s: %w", r.name, line, err)
		}
		checks = append(checks, check)
	}
	if checks != nil {
		result = append(result, member{"entity_checks", checks})
	}
	return result, nil
}

func (s *source) kongField(f field, narrowing string) (object, error) {
	shape, err := s.kongType(f.typ, f.tags)
	if err != nil {
		return nil, err
	}
	attributes, err := s.attributes(f.tags, "kong")
	if err != nil {
		return nil, err
	}
	if f.typ.kind == "record" && !attributes.has("required") {
		attributes = append(attributes, member{"required", false}) // Kong requires a record that says nothing about it
	}
	if narrowing != "" {
		narrow, err := s.constraints(narrowing)
		if err != nil {
			return nil, err
		}
		attributes = replaceMembers(attributes, narrow)
	}
	if value, ok := f.tags.Lookup("default"); ok {
		def, err := defaultValue(f.typ, value)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, member{"default", def})
	}
	result := object{shape[0], {"description", f.description}}
	result = append(result, attributes...)
	result = append(result, shape[1:]...)
	return asSet(result), nil
}

// asSet replaces the type array by set if the tag has the marker "set".
func asSet(o object) object {
	var result object
	isSet := false
	for _, m := range o {
		if m.key == "set" {
			isSet = true
			continue
		}
		result = append(result, m)
	}
	if isSet {
		result[0].value = "set"
	}
	return result
}

func replaceMembers(o, by object) object {
	for _, replacement := range by {
		for i := range o {
			if o[i].key == replacement.key {
				o[i] = replacement
			}
		}
	}
	return o
}

// kongType returns the attributes of a type: "type" first, then its parts.
func (s *source) kongType(t fieldType, tags reflect.StructTag) (object, error) {
	switch t.kind {
	case "record":
		return s.kongRecord(t.record, tags)
	case "array":
		elements, err := s.kongElement(*t.elem, tags, "elements")
		return object{{"type", "array"}, {"elements", elements}}, err
	case "map":
		keys, err := s.kongElement(fieldType{kind: "string"}, tags, "keys")
		if err != nil {
			return nil, err
		}
		values, err := s.kongElement(*t.elem, tags, "values")
		return object{{"type", "map"}, {"keys", keys}, {"values", values}}, err
	}
	return object{{"type", t.kind}}, nil
}

func (s *source) kongElement(t fieldType, tags reflect.StructTag, tag string) (object, error) {
	shape, err := s.kongType(t, tags)
	if err != nil {
		return nil, err
	}
	attributes, err := s.attributes(tags, tag)
	return append(shape, attributes...), err
}

// defaultValue parses the text of a default tag as a value of type t; "|" separates the elements of an array.
func defaultValue(t fieldType, text string) (any, error) {
	switch t.kind {
	case "string":
		return text, nil
	case "boolean":
		return strconv.ParseBool(text)
	case "integer":
		return strconv.ParseInt(text, 10, 64)
	case "array":
		if text == "" {
			return []string{}, nil
		}
		return strings.Split(text, "|"), nil
	}
	return nil, fmt.Errorf("a %s cannot have a default", t.kind)
}
