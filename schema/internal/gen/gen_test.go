package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGeneratedFilesMatchTheSource(t *testing.T) {
	dir := filepath.Join("..", "..")
	files, err := generate(dir)
	require.NoError(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs from config.go: run go generate ./schema", name)
		}
	}
}

// attributesByType are the field attributes that Kong's metaschema allows for each type, as far as we use them.
var attributesByType = map[string][]string{
	"string":  {"one_of", "match", "match_any", "len_min", "len_max", "referenceable", "encrypted", "err"},
	"integer": {"between"},
	"boolean": {},
	"array":   {"elements", "len_min", "len_max"},
	"set":     {"elements", "len_min", "len_max"},
	"map":     {"keys", "values"},
	"record":  {"fields", "entity_checks"},
}

func TestSchemaHasOnlyWhatKongsMetaschemaAllows(t *testing.T) {
	files, err := generate(filepath.Join("..", ".."))
	require.NoError(t, err)
	var document struct {
		Name   string
		Fields []map[string]map[string]any
	}
	require.NoError(t, json.Unmarshal(files[schemaFile], &document))
	fields := 0
	for _, entry := range document.Fields {
		for name, attributes := range entry {
			checkField(t, name, attributes, &fields)
		}
	}
	if fields < 60 {
		t.Errorf("only %d fields were checked", fields)
	}
}

func checkField(t *testing.T, path string, attributes map[string]any, seen *int) {
	t.Helper()
	kind, _ := attributes["type"].(string)
	allowed, ok := attributesByType[kind]
	if !ok {
		t.Errorf("%s: type %q", path, kind)
		return
	}
	for key := range attributes {
		if !slices.Contains(allowed, key) && !slices.Contains([]string{"type", "description", "required", "default"}, key) {
			t.Errorf("%s: attribute %s on a %s", path, key, kind)
		}
	}
	for _, inner := range []string{"elements", "keys", "values"} {
		if element, ok := attributes[inner].(map[string]any); ok {
			checkField(t, path+"/"+inner, element, seen)
		}
	}
	fields, _ := attributes["fields"].([]any)
	for _, entry := range fields {
		single := entry.(map[string]any)
		if len(single) != 1 {
			t.Errorf("%s: a field entry has %d keys", path, len(single))
		}
		for name, inner := range single {
			checkNamedField(t, path+"."+name, inner.(map[string]any), seen)
		}
	}
}

func checkNamedField(t *testing.T, path string, attributes map[string]any, seen *int) {
	t.Helper()
	*seen++
	description, _ := attributes["description"].(string)
	if len(description) < 10 || len(description) > 500 {
		t.Errorf("%s: a description of %d characters", path, len(description))
	}
	if !strings.Contains(description, "Default: ") && !strings.Contains(description, "Required") {
		t.Errorf("%s: the description states no default: %s", path, description)
	}
	_, hasDefault := attributes["default"]
	if hasDefault && attributes["required"] != true {
		t.Errorf("%s: has a default but may be null", path)
	}
	checkField(t, path, attributes, seen)
}

func TestFaultsInTheSourceAreReported(t *testing.T) {
	g := &generator{docs: map[string]string{}}
	for name, test := range map[string]struct {
		record any
		want   string
	}{
		"unknown constraint": {struct {
			A string `json:"a" kong:"lt=4"`
		}{}, `unknown constraint "lt"`},
		"unknown type": {struct {
			A chan int `json:"a"`
		}{}, "no type of Kong"},
		"no json name": {struct {
			A string `kong:"required"`
		}{}, "has no json name"},
		"bad default": {struct {
			A int64 `json:"a" default:"x"`
		}{}, "invalid syntax"},
		"unknown pattern list": {struct {
			A string `json:"a" kong:"match_any=x"`
		}{}, "no //kong:patterns x"},
		"description too short": {struct {
			B string `json:"b"`
		}{}, ".B: the doc comment's first paragraph has 6 characters"},
	} {
		g.docs, g.faults = map[string]string{".A": "Long enough a text.", ".B": "Short."}, nil
		g.kongRecord(reflect.TypeOf(test.record), "")
		if err := errors.Join(g.faults...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.faults = nil
	g.directive("{")
	g.directive(`{"err": "%"}`)
	if len(g.faults) != 2 {
		t.Errorf("faults of directives: %v", g.faults)
	}
}

func TestOptionsGoBetweenTheMarkersOfTheReadme(t *testing.T) {
	readme := "# Title\n" + optionsStart + "old\n" + optionsEnd + "\nrest\n"
	got, ok := insertOptions([]byte(readme), []byte("new\n"))
	want := "# Title\n" + optionsStart + "\n\nnew\n\n" + optionsEnd + "\nrest\n"
	if !ok || string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	again, _ := insertOptions(got, []byte("new\n"))
	if string(again) != want {
		t.Errorf("a second run changes it to %q", again)
	}
	if _, ok := insertOptions([]byte("# Title\n"+optionsStart), nil); ok {
		t.Error("a README without an end marker was rewritten")
	}
}
