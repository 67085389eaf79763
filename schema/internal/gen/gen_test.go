package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
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
	for name, test := range map[string]struct{ source, want string }{
		"description too short": {
			"// Short.\nA string `json:\"a\"`", "A: the doc comment's first paragraph has 6 characters",
		},
		"unknown constraint": {"// Long enough a text.\nA string `json:\"a\" kong:\"lt=4\"`", `unknown constraint "lt"`},
		"unknown type":       {"// Long enough a text.\nA chan int `json:\"a\"`", "no type of Kong"},
		"no json name":       {"// Long enough a text.\nA string `kong:\"required\"`", "A: no json name"},
		"bad default":        {"// Long enough a text.\nA int64 `json:\"a\" default:\"x\"`", "invalid syntax"},
		"unknown pattern list": {
			"// Long enough a text.\nA string `json:\"a\" kong:\"match_any=x\"`", "no //kong:patterns x",
		},
	} {
		dir := t.TempDir()
		source := "package p\n\ntype Config struct {\n" + test.source + "\n}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.go"), []byte(source), 0o600))
		if _, err := generate(dir); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFaultsInDirectivesAreReported(t *testing.T) {
	for line, want := range map[string]string{
		"sometimes a|b":                             `unknown entity check "sometimes"`,
		"conditional if=a:required":                 "no err",
		`conditional if=a:required err="x"`:         "want if=",
		`conditional if=a:x then=b:eq=c err="x"`:    "unknown constraint",
		`conditional if=a:eq=b then=c:eq=d err="%"`: "percent sign",
	} {
		if _, err := entityCheck(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
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
