package schema

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// verdict is the recorded answer of a Kong 3.9.3 to a config; testdata/kong/README.md describes the files.
type verdict struct {
	Schema, Case, Method string
	Before, Config       json.RawMessage
	Status               int
	Body                 struct{ Fields struct{ Config any } }
}

// verdicts reads a file of recorded answers.
func verdicts(t *testing.T, file string) (all []verdict) {
	t.Helper()
	raw, err := os.ReadFile("testdata/kong/" + file)
	require.NoError(t, err)
	for line := range bytes.Lines(raw) {
		var v verdict
		require.NoError(t, json.Unmarshal(line, &v))
		all = append(all, v)
	}
	require.Greater(t, len(all), 50)
	return all
}

// config returns the config that Kong judged: what was sent, and for a PATCH what it makes of the config before it.
func (v *verdict) config(t *testing.T) json.RawMessage {
	t.Helper()
	var before, sent any
	if v.Config == nil {
		return json.RawMessage("{}")
	}
	if v.Method != "PATCH" {
		return v.Config
	}
	require.NoError(t, json.Unmarshal(v.Before, &before))
	require.NoError(t, json.Unmarshal(v.Config, &sent))
	merged, err := json.Marshal(patched(configField(), before, sent))
	require.NoError(t, err)
	return merged
}

// patched merges records field by field, and replaces everything else.
func patched(f *field, before, sent any) any {
	old, isOld := before.(map[string]any)
	patch, isPatch := sent.(map[string]any)
	if f == nil || f.Type != "record" || !isOld || !isPatch {
		return sent
	}
	merged := maps.Clone(old)
	for name, value := range patch {
		merged[name] = patched(f.field(name), old[name], value)
	}
	return merged
}

// recordedSchema returns the definition of the config of a schema that a real Kong loaded.
func recordedSchema(t *testing.T, file string) map[string]any {
	t.Helper()
	raw, err := os.ReadFile("testdata/kong/admin-schema/" + file)
	require.NoError(t, err)
	var dump struct {
		Plugins []struct{ Schema json.RawMessage }
	}
	require.NoError(t, json.Unmarshal(raw, &dump))
	return configDefinition(t, dump.Plugins[0].Schema)
}

func configDefinition(t *testing.T, schema json.RawMessage) map[string]any {
	t.Helper()
	var document struct{ Fields []map[string]map[string]any }
	require.NoError(t, json.Unmarshal(schema, &document))
	for _, entry := range document.Fields {
		if config := entry["config"]; config != nil {
			return config
		}
	}
	t.Fatal("a schema without config")
	return nil
}

// unsaid is a fault of our own schema. Kong requires such a record, fills it with defaults, and reports its required
// fields as missing: it would deny a config without anonymous and global.
const unsaid = "a record that does not say whether it is required"

// attributesOf returns the attributes of a definition and of those within it, each with its type, and the names of
// entity checks.
func attributesOf(definition map[string]any) (found []string) {
	kind, _ := definition["type"].(string)
	for attribute := range definition {
		found = append(found, kind+"."+attribute)
	}
	checks, _ := definition["entity_checks"].([]any)
	for _, check := range checks {
		found = slices.AppendSeq(found, maps.Keys(check.(map[string]any)))
	}
	for _, name := range []string{"elements", "keys", "values"} {
		if inner, ok := definition[name].(map[string]any); ok {
			found = append(found, attributesOf(inner)...)
		}
	}
	fields, _ := definition["fields"].([]any)
	for _, entry := range fields {
		for _, inner := range entry.(map[string]any) {
			inner := inner.(map[string]any)
			if inner["type"] == "record" && inner["required"] == nil {
				found = append(found, unsaid)
			}
			found = append(found, attributesOf(inner)...)
		}
	}
	return found
}

func TestTheSchemaHasOnlyAttributesThatARealKongHasLoaded(t *testing.T) {
	var loaded []string
	files, err := os.ReadDir("testdata/kong/admin-schema")
	require.NoError(t, err)
	for _, file := range files {
		for _, attribute := range attributesOf(recordedSchema(t, file.Name())) {
			loaded = append(loaded, attribute, strings.Replace(attribute, "array.", "set.", 1))
		}
	}
	for _, attribute := range attributesOf(configDefinition(t, kongSchema)) {
		require.NotEqual(t, unsaid, attribute)
		if !slices.Contains(loaded, attribute) {
			t.Errorf("no recorded schema has %s", attribute)
		}
	}
}

// within removes the fields from a config's definition that the generator could not write, and returns their names.
func within(definition map[string]any, language []string) (removed []string) {
	definition["fields"] = slices.DeleteFunc(definition["fields"].([]any), func(entry any) bool {
		for name, inner := range entry.(map[string]any) {
			for _, attribute := range attributesOf(map[string]any{"fields": []any{map[string]any{name: inner}}}) {
				if !slices.Contains(language, attribute) {
					removed = append(removed, name)
					return true
				}
			}
		}
		return false
	})
	return removed
}

// hasAny reports whether an object has one of the keys.
func hasAny(object any, keys []string) bool {
	members, _ := object.(map[string]any)
	return slices.ContainsFunc(keys, func(key string) bool { _, has := members[key]; return has })
}

func TestTheCheckerJudgesConfigsAsARealKong(t *testing.T) {
	language := append(attributesOf(configDefinition(t, kongSchema)), ".fields")
	judged := 0
	for _, v := range append(verdicts(t, "admin-schema.jsonl"), verdicts(t, "admin-plugin.jsonl")...) {
		definition, config := recordedSchema(t, v.Schema+".json"), v.config(t)
		removed := within(definition, language)
		var sent any
		require.NoError(t, json.Unmarshal(config, &sent))
		if hasAny(sent, removed) || hasAny(v.Body.Fields.Config, removed) {
			continue
		}
		encoded, err := json.Marshal(definition)
		require.NoError(t, err)
		var f field
		require.NoError(t, unmarshalSchema(encoded, &f))
		f.prepare()
		document, faults := decodeDocument(config)
		c := checker{faulty: map[string]bool{}, nulls: true}
		c.value(&f, document, "")
		if faults = append(faults, c.faults...); (v.Status < 300) != (len(faults) == 0) {
			t.Errorf("%s: %s: Kong answers %d, here %v\n%s", v.Schema, v.Case, v.Status, faults, config)
		}
		judged++
	}
	if judged < 140 {
		t.Errorf("%d cases judged", judged)
	}
}

func TestParseJudgesConfigsOfThePluginAsARealKong(t *testing.T) {
	raw, err := os.ReadFile("testdata/kong/stricter.json")
	require.NoError(t, err)
	var stricter map[string]string
	require.NoError(t, json.Unmarshal(raw, &stricter))
	for _, v := range verdicts(t, "admin-plugin.jsonl") {
		if v.Schema != Name {
			continue // history: the schema has changed
		}
		config := v.config(t)
		_, _, err := ParseNew(config)
		if accepted := v.Status < 300 && stricter[v.Case] == ""; accepted != (err == nil) {
			t.Errorf("%s: Kong answers %d, Parse: %v\n%s", v.Case, v.Status, err, config)
		}
	}
}
