package fieldschema

import (
	"maps"
	"strings"
)

// WithoutNulls drops nil fields of objects at every depth, as Kong does in the config of an instance.
func WithoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			if item != nil {
				out[key] = WithoutNulls(item)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = WithoutNulls(item)
		}
		return out
	}
	return value
}

// parseReference returns the name of a value that is kept in a vault, {vault://name}.
func parseReference(value any) (string, bool) {
	text, ok := value.(string)
	if !ok || !strings.HasPrefix(text, "{vault://") || !strings.HasSuffix(text, "}") {
		return "", false
	}
	return text[1 : len(text)-1], true
}

// Resolve replaces references in referenceable string fields by the values that lookup returns for them
// ("vault://env/name"; "" for no value). It keeps the references in a "$refs" object beside them, as Kong does. It does
// not change config.
func (s *Schema) Resolve(config map[string]any, lookup func(string) string) map[string]any {
	resolved, _ := resolve(s.entity.child("config"), config, lookup).(map[string]any)
	return resolved
}

func resolve(f *field, value any, lookup func(string) string) any {
	switch v := value.(type) {
	case []any:
		if f.elements == nil {
			return value
		}
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = resolve(f.elements, item, lookup)
		}
		return out
	case map[string]any:
		if f.kind != "record" {
			return value
		}
		out, refs := maps.Clone(v), map[string]any{}
		for _, c := range f.fields {
			target, isReference := parseReference(v[c.name])
			if isReference && c.isSet("referenceable") {
				refs[c.name], out[c.name] = v[c.name], lookup(target)
				continue
			}
			out[c.name] = resolve(c, v[c.name], lookup)
		}
		if len(refs) > 0 {
			out["$refs"] = refs
		}
		return out
	}
	return value
}
