package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// schemaField is a field of a plugin's schema, as far as the stand-in applies it: types, defaults, choices and bounds.
// Kong has many more rules; package schema has them for the plugin of this repository.
type schemaField struct {
	Type          string
	Required      *bool
	Default       any
	OneOf         []any `json:"one_of"`
	Between       []float64
	Referenceable bool
	Elements      *schemaField
	Values        *schemaField
	Fields        []map[string]*schemaField // each with one key
	// NotSimulated is an attribute of the bundled plugins: the fault of any value but the default.
	NotSimulated string `json:"not_simulated"`
}

const missingField = "required field missing"

// parseSchema returns a plugin's name and its config's field.
func parseSchema(raw []byte) (name string, config *schemaField, err error) {
	var document struct {
		Name   string
		Fields []map[string]*schemaField
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return "", nil, fmt.Errorf("parse plugin schema: %w", err)
	}
	config = (&schemaField{Fields: document.Fields}).child("config")
	if config == nil || config.Type != "record" {
		return "", nil, fmt.Errorf("plugin schema %s: missing a record \"config\"", document.Name)
	}
	return document.Name, config, nil
}

// child returns a record's field by its name, or nil.
func (f *schemaField) child(name string) *schemaField {
	for _, entry := range f.Fields {
		if inner := entry[name]; inner != nil {
			return inner
		}
	}
	return nil
}

// isRequired reports whether Kong denies a null. Kong requires every record, unless its schema says otherwise.
func (f *schemaField) isRequired() bool {
	if f.Required == nil {
		return f.Type == "record"
	}
	return *f.Required
}

// absent returns what Kong takes for a value that is not given.
func (f *schemaField) absent() any {
	if f.Default == nil && f.Type == "record" && f.isRequired() {
		return map[string]any{}
	}
	return f.Default
}

// completer fills in configs as Kong does before it starts an instance, and collects their faults.
type completer struct{ faults Faults }

func (c *completer) fault(path, format string, args ...any) any {
	c.faults = append(c.faults, Fault{Path: path, Message: fmt.Sprintf(format, args...)})
	return nil
}

// value returns a value of f with the defaults of its fields, without nulls, and with the values of vault references.
func (c *completer) value(f *schemaField, value any, path string) any {
	if value == nil {
		if f.isRequired() {
			c.fault(path, missingField)
		}
		return nil
	}
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	isEmpty := (isList || isObject) && len(list)+len(object) == 0 // Lua has one empty table
	switch {
	case f.Type == "record" && (isObject || isEmpty):
		return c.record(f, object, path)
	case f.Type == "map" && (isObject || isEmpty):
		return c.entries(f, object, path)
	case (f.Type == "array" || f.Type == "set") && (isList || isEmpty):
		return c.items(f, list, path)
	case !f.isScalar(value):
		return c.fault(path, "%s", expected[f.Type])
	case f.OneOf != nil && !slices.Contains(f.OneOf, value):
		return c.fault(path, "expected one of %v", f.OneOf)
	}
	if number, is := value.(float64); is && f.Between != nil && (number < f.Between[0] || number > f.Between[1]) {
		return c.fault(path, "value should be between %v and %v", f.Between[0], f.Between[1])
	}
	return value
}

var expected = map[string]string{
	"string": "expected a string", "boolean": "expected a boolean", "number": "expected a number",
	"integer": "expected an integer", "array": "expected an array", "set": "expected a set", "map": "expected a map",
	"record": "expected a record",
}

// isScalar reports whether the field is a scalar and the value has its type.
func (f *schemaField) isScalar(value any) bool {
	switch v := value.(type) {
	case string:
		return f.Type == "string"
	case bool:
		return f.Type == "boolean"
	case float64:
		return f.Type == "number" || f.Type == "integer" && v == math.Trunc(v)
	}
	return false
}

func (c *completer) record(f *schemaField, given map[string]any, path string) any {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if f.child(name) == nil {
			c.fault(docpath.Join(path, name), "unknown field")
		}
	}
	out, refs := map[string]any{}, map[string]any{}
	for _, entry := range f.Fields {
		for name, inner := range entry {
			value, isGiven := given[name]
			if !isGiven {
				value = inner.absent()
			} else if inner.NotSimulated != "" && fmt.Sprint(value) != fmt.Sprint(inner.Default) {
				c.fault(docpath.Join(path, name), "%s", inner.NotSimulated)
			}
			if reference, is := parseReference(value); is && inner.Referenceable {
				refs[name], value = value, lookupEnvVault(reference)
			}
			if completed := c.value(inner, value, docpath.Join(path, name)); completed != nil {
				out[name] = completed
			}
		}
	}
	if len(refs) > 0 {
		out["$refs"] = refs
	}
	return out
}

func (c *completer) entries(f *schemaField, given map[string]any, path string) any {
	out := map[string]any{}
	for name, value := range given {
		out[name] = c.item(f.Values, value, docpath.Join(path, name))
	}
	return out
}

func (c *completer) items(f *schemaField, given []any, path string) any {
	out := make([]any, len(given))
	for i, value := range given {
		out[i] = c.item(f.Elements, value, docpath.Item(path, i))
	}
	return out
}

// item returns an element of a list or a value of a map, which is never null.
func (c *completer) item(f *schemaField, value any, path string) any {
	if value == nil {
		return c.fault(path, missingField)
	}
	return c.value(f, value, path)
}

// parseReference returns the name of a value that is kept in a vault, {vault://name}.
func parseReference(value any) (string, bool) {
	text, _ := value.(string)
	if !strings.HasPrefix(text, "{vault://") || !strings.HasSuffix(text, "}") {
		return "", false
	}
	return text[1 : len(text)-1], true
}

// lookupEnvVault resolves a reference to Kong's env vault: vault://env/some-name is the variable SOME_NAME of the
// gateway's own environment, "" when it is not set.
func lookupEnvVault(reference string) string {
	name, ok := strings.CutPrefix(reference, "vault://env/")
	if !ok {
		return ""
	}
	return os.Getenv(strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
}

// complete returns the config of a plugin entry as Kong starts an instance with it.
func (p *PluginInfo) complete(entry *PluginConfig) (map[string]any, Faults) {
	var c completer
	config, _ := c.value(p.config, entry.Config, docpath.Join(entry.Path, "config")).(map[string]any)
	return config, c.faults
}
