package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

type kongField struct {
	Type          string                  `json:"type"`
	Description   string                  `json:"description,omitempty"`
	Referenceable bool                    `json:"referenceable,omitempty"`
	Encrypted     bool                    `json:"encrypted,omitempty"`
	Required      *bool                   `json:"required,omitempty"`
	Between       []int64                 `json:"between,omitempty"`
	OneOf         []string                `json:"one_of,omitempty"`
	Match         string                  `json:"match,omitempty"`
	MatchAny      json.RawMessage         `json:"match_any,omitempty"`
	LenMin        *int64                  `json:"len_min,omitempty"`
	LenMax        *int64                  `json:"len_max,omitempty"`
	Err           string                  `json:"err,omitempty"`
	Default       any                     `json:"default,omitempty"`
	Elements      *kongField              `json:"elements,omitempty"`
	Keys          *kongField              `json:"keys,omitempty"`
	Values        *kongField              `json:"values,omitempty"`
	Fields        []map[string]*kongField `json:"fields,omitempty"` // each with one key
	EntityChecks  []json.RawMessage       `json:"entity_checks,omitempty"`

	record reflect.Type // nil: it is none
}

// kongType returns a type of Go as one of Kong, with the constraints of its elements in the tags.
func (g *generator) kongType(t reflect.Type, tags reflect.StructTag) *kongField {
	element := func(t reflect.Type, key string) *kongField {
		k := g.kongType(t, tags)
		g.constrain(k, tags, key)
		return k
	}
	if t == reflect.TypeFor[schema.Price]() { // which JSON writes as a text
		return &kongField{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &kongField{Type: "boolean"}
	case reflect.Int64:
		return &kongField{Type: "integer"}
	case reflect.String:
		return &kongField{Type: "string"}
	case reflect.Pointer:
		return g.kongType(t.Elem(), tags)
	case reflect.Slice:
		return &kongField{Type: "array", Elements: element(t.Elem(), "elements")}
	case reflect.Map:
		return &kongField{Type: "map", Keys: element(t.Key(), "keys"), Values: element(t.Elem(), "values")}
	case reflect.Struct:
		if t.Name() == "Time" { // of package time, which JSON writes as a text
			return &kongField{Type: "string"}
		}
		return g.kongRecord(t, tags)
	}
	g.fault("%v is no type of Kong", t)
	return &kongField{}
}

// kongRecord returns a struct as a record. The tags of the field that contains it may narrow one of its fields: a tag
// named after that field replaces its constraints.
func (g *generator) kongRecord(t reflect.Type, narrowed reflect.StructTag) *kongField {
	k := &kongField{Type: "record", record: t}
	g.addFields(k, t, narrowed)
	return k
}

// addFields adds the fields and checks of a struct. In JSON those of an embedded one are its own.
func (g *generator) addFields(k *kongField, t reflect.Type, narrowed reflect.StructTag) {
	k.EntityChecks = append(k.EntityChecks, g.checks[t.Name()]...)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			g.addFields(k, f.Type, narrowed)
			continue
		}
		g.at = t.Name() + "." + f.Name
		name, field := jsonName(f), g.kongField(g.at, f)
		if name == "" {
			g.fault("has no json name")
		}
		g.addConstraints(field, narrowed.Get(name))
		k.Fields = append(k.Fields, map[string]*kongField{name: field})
	}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// kongField returns the field of a struct that is called at in the source.
func (g *generator) kongField(at string, f reflect.StructField) *kongField {
	k := g.kongType(f.Type, f.Tag)
	g.at = at
	if k.Description = g.docs[at]; len(k.Description) < 10 || len(k.Description) > 500 {
		g.fault("the doc comment's first paragraph has %d characters, Kong wants 10 to 500", len(k.Description))
	}
	g.constrain(k, f.Tag, "kong")
	if k.Type == "record" && k.Required == nil {
		k.Required = new(bool) // Kong requires a record that says nothing about it
	}
	if text, ok := f.Tag.Lookup("default"); ok {
		k.Default = g.defaultValue(k.Type, text)
	}
	return k
}

// constrain adds the constraints in the tag called key, and the message for all of them in key_err.
func (g *generator) constrain(k *kongField, tags reflect.StructTag, key string) {
	name, isOther := strings.CutPrefix(tags.Get(key), "as=")
	if !isOther {
		g.addConstraints(k, tags.Get(key))
		k.Err = tags.Get(key + "_err")
		return
	}
	typeName, fieldName, _ := strings.Cut(name, ".")
	for _, t := range recordTypes {
		for i := range t.NumField() {
			if f := t.Field(i); t.Name() == typeName && jsonName(f) == fieldName {
				g.constrain(k, f.Tag, key)
				k.Required = nil
				return
			}
		}
	}
	g.fault("no field %s to take the constraints of", name)
}

// addConstraints adds a list such as "required,between=1..128".
func (g *generator) addConstraints(k *kongField, list string) {
	for item := range strings.SplitSeq(list, ",") {
		key, value, _ := strings.Cut(item, "=")
		switch key {
		case "":
		case "required":
			k.Required = new(true)
		case "referenceable":
			k.Referenceable = true
		case "encrypted":
			k.Encrypted = true
		case "set":
			k.Type = "set"
		case "one_of":
			k.OneOf = strings.Split(value, "|")
		case "match":
			k.Match = value
		case "match_any":
			if k.MatchAny = g.patterns[value]; k.MatchAny == nil {
				g.fault("no //kong:patterns %s", value)
			}
		case "len_min":
			k.LenMin = g.integer(value)
		case "len_max":
			k.LenMax = g.integer(value)
		case "between":
			low, high, _ := strings.Cut(value, "..")
			k.Between = []int64{*g.integer(low), *g.integer(high)}
		default:
			g.fault("unknown constraint %q", key)
		}
	}
}

func (g *generator) integer(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		g.fault("%v", err)
	}
	return &n
}

// defaultValue returns the text of a default tag as a value of a type; "|" separates the elements of a list.
func (g *generator) defaultValue(kind, text string) any {
	switch kind {
	case "string":
		return text
	case "boolean":
		return text == "true"
	case "integer":
		return *g.integer(text)
	case "array", "set":
		return strings.FieldsFunc(text, func(c rune) bool { return c == '|' })
	}
	g.fault("a %s cannot have a default", kind)
	return nil
}

// writeTable appends the options of a record as a table of Markdown, and those of the records in it; a record that
// occurs more than once is described where it occurs first.
func writeTable(b *strings.Builder, k *kongField, path string, done map[reflect.Type]bool) {
	done[k.record] = true
	fmt.Fprintf(b, "\n**`%s`**\n\n| option | type | default | meaning |\n|---|---|---|---|\n", path)
	for name, f := range k.each {
		meaning, def := splitDefault(f.Description)
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, f.typeText(), cell(def), cell(meaning))
	}
	for name, f := range k.each {
		suffix := ""
		if f.Elements != nil {
			f, suffix = f.Elements, "[]"
		}
		if f.record != nil && !done[f.record] {
			writeTable(b, f, path+"."+name+suffix, done)
		}
	}
}

func (k *kongField) each(visit func(string, *kongField) bool) {
	for _, entry := range k.Fields {
		for name, f := range entry {
			visit(name, f)
		}
	}
}

// splitDefault splits a description from its last sentence, which states the default or "Required.".
func splitDefault(description string) (meaning, def string) {
	meaning, def, _ = strings.Cut(description, " Default: ")
	if def == "" && strings.Contains(description, "Required") {
		def = "required"
	}
	return meaning, strings.TrimSuffix(def, ".")
}

func (k *kongField) typeText() string {
	if inner := cmp.Or(k.Elements, k.Values); inner != nil {
		return k.Type + " of " + inner.Type
	}
	return k.Type
}

// cell escapes characters that would end a table cell or start HTML.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`).Replace(text)
}
