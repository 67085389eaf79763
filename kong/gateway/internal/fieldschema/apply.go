package fieldschema

import (
	"slices"
	"strings"
)

// Scope says what a plugin's configuration is bound to; schemas may forbid it.
type Scope struct {
	Route, Service, Consumer bool
}

// Apply gives a plugin's config as Kong would store it: defaults filled in,
// absent optional fields nil, sets without duplicates. Faults are in the
// schema's order; with any of them the config is of no use. protocols are the
// plugin entry's own, nil for the schema's default.
func (s *Schema) Apply(config map[string]any, protocols []string, scope Scope) (map[string]any, []Fault) {
	entity := map[string]any{"config": any(config)}
	if config == nil {
		entity["config"] = map[string]any{}
	}
	if protocols != nil && s.record.child("protocols") != nil {
		list := make([]any, len(protocols))
		for i, protocol := range protocols {
			list[i] = protocol
		}
		entity["protocols"] = list
	}
	for name, bound := range map[string]bool{
		"route": scope.Route, "service": scope.Service, "consumer": scope.Consumer,
	} {
		if bound && s.record.child(name) != nil {
			entity[name] = map[string]any{}
		}
	}
	completed := complete(s.record, entity).(map[string]any)
	var c checker
	c.validate("", s.record, completed)
	applied, _ := completed["config"].(map[string]any)
	return applied, c.faults
}

// complete fills in what is absent from a given value.
func complete(f *field, value any) any {
	switch f.kind {
	case "record":
		if object, ok := value.(map[string]any); ok {
			return completeRecord(f, object)
		}
	case "array", "set":
		return completeList(f, value)
	case "map":
		if object, ok := value.(map[string]any); ok {
			out := make(map[string]any, len(object))
			for key, v := range object {
				out[key] = complete(f.values, v)
			}
			return out
		}
	}
	return value
}

func completeRecord(f *field, object map[string]any) map[string]any {
	out := merged(object, nil)
	for _, c := range f.fields {
		given, present := object[c.name]
		if present {
			out[c.name] = complete(c, given)
			continue
		}
		fallback, has := c.attrs["default"]
		switch {
		case has:
			out[c.name] = complete(c, fallback)
		case !c.is("required"):
			out[c.name] = nil
		case c.kind == "record":
			out[c.name] = completeRecord(c, nil)
		}
	}
	return out
}

func completeList(f *field, value any) any {
	if object, ok := value.(map[string]any); ok && len(object) == 0 {
		return []any{} // Lua has one empty table
	}
	list, ok := value.([]any)
	if !ok {
		return value
	}
	out := make([]any, 0, len(list))
	for _, v := range list {
		v = complete(f.elements, v)
		if f.kind == "set" && containsScalar(out, v) {
			continue
		}
		out = append(out, v)
	}
	return out
}

func containsScalar(list []any, value any) bool {
	return slices.ContainsFunc(list, func(v any) bool { return equal(v, value) })
}

// equal compares scalars; tables are never equal, as in Lua.
func equal(a, b any) bool {
	switch a.(type) {
	case []any, map[string]any:
		return false
	}
	switch b.(type) {
	case []any, map[string]any:
		return false
	}
	return a == b
}

// WithoutNulls drops nil fields of objects at every depth, as Kong does in the
// config it hands to a plugin.
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

// reference is Kong's form of a value kept in a vault: {vault://…}.
func reference(value any) (string, bool) {
	text, ok := value.(string)
	if !ok || !strings.HasPrefix(text, "{vault://") || !strings.HasSuffix(text, "}") {
		return "", false
	}
	return text[1 : len(text)-1], true
}

// Resolve replaces references in referenceable string fields with what lookup
// gives for them ("vault://env/name"; "" when there is none) and records the
// originals in a "$refs" object beside them, as Kong does. config is not
// changed.
func (s *Schema) Resolve(config map[string]any, lookup func(string) string) map[string]any {
	resolved, _ := resolve(s.record.child("config"), config, lookup).(map[string]any)
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
		out, refs := merged(v, nil), map[string]any{}
		for _, c := range f.fields {
			target, isReference := reference(v[c.name])
			if isReference && c.is("referenceable") {
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
