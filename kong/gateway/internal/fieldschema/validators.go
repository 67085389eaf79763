package fieldschema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// validator is one of Kong's checks of a single value; check returns the message of a value that does not pass.
type validator struct {
	attr  string
	check func(f *field, value, arg any) string
}

// validators holds all of them in Kong's order. The first that fails is reported.
var validators = []validator{
	{"eq", func(_ *field, v, arg any) string { return messageUnless(v == arg, "value must be %s", luaText(arg)) }},
	{"ne", func(_ *field, v, arg any) string { return messageUnless(v != arg, "value must not be %s", luaText(v)) }},
	{"not_one_of", func(_ *field, v, arg any) string {
		return messageUnless(!slices.Contains(asList(arg), v), "must not be one of: %s", joinScalars(arg))
	}},
	{"one_of", func(_ *field, v, arg any) string {
		return messageUnless(slices.Contains(asList(arg), v), "expected one of: %s", joinScalars(arg))
	}},
	{"gt", func(_ *field, v, arg any) string {
		return messageUnless(asNumber(v) > asNumber(arg), "value must be greater than %s", luaText(arg))
	}},
	{"timestamp", func(_ *field, v, _ any) string { return messageUnless(asNumber(v) > 0, "expected a valid timestamp") }},
	{"uuid", func(_ *field, v, _ any) string {
		return messageUnless(uuidPattern.MatchString(asString(v)), "expected a valid UUID")
	}},
	{"is_regex", func(_ *field, v, _ any) string {
		return messageUnless(isRegex(asString(v)), "not a valid regex: %s", luaText(v))
	}},
	{"between", between},
	{"len_eq", func(f *field, v, arg any) string {
		return messageUnless(f.length(v) == asNumber(arg), "length must be %s", formatInteger(arg))
	}},
	{"len_min", func(f *field, v, arg any) string {
		return messageUnless(f.length(v) >= asNumber(arg), "length must be at least %s", formatInteger(arg))
	}},
	{"len_max", func(f *field, v, arg any) string {
		return messageUnless(f.length(v) <= asNumber(arg), "length must be at most %s", formatInteger(arg))
	}},
	{"starts_with", func(_ *field, v, arg any) string {
		return messageUnless(strings.HasPrefix(asString(v), asString(arg)), "should start with: %s", luaText(arg))
	}},
	{"not_match", func(_ *field, v, arg any) string {
		return messageUnless(!luaMatch(asString(v), asString(arg)), "invalid value: %s", luaText(v))
	}},
	{"match_none", func(_ *field, v, arg any) string { return matchEach(v, arg, false) }},
	{"match", func(_ *field, v, arg any) string {
		return messageUnless(luaMatch(asString(v), asString(arg)), "invalid value: %s", luaText(v))
	}},
	{"match_all", func(_ *field, v, arg any) string { return matchEach(v, arg, true) }},
	{"match_any", matchAny},
	{"contains", func(_ *field, v, arg any) string {
		return messageUnless(slices.Contains(tableItems(v), arg), "expected to contain: %s", luaText(arg))
	}},
	{"mutually_exclusive_subsets", exclusiveSubsets},
}

func (f *field) runValidators(value any) any {
	for _, v := range validators {
		arg, has := f.attrs[v.attr]
		if !has && v.attr == "len_min" && f.kind == "string" {
			arg, has = f.minLength(), true
		}
		if !has {
			continue
		}
		if message := v.check(f, value, arg); message != "" {
			return f.messageOr(message)
		}
	}
	if f.custom != nil {
		if message := f.custom(asString(value)); message != "" {
			return f.messageOr(message)
		}
	}
	return nil
}

// length returns the bytes of a string, the elements of a list, the entries of a map. Kong counts the entries twice of
// a map that was written as a list.
func (f *field) length(value any) float64 {
	switch v := value.(type) {
	case string:
		return float64(len(v))
	case *table:
		n := v.length()
		if f.kind == "map" {
			n += len(v.entries)
		}
		return float64(n)
	}
	raise("attempt to get length of %s", luaText(value))
	return 0
}

var uuidPattern = regexp.MustCompile(`^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func between(_ *field, value, arg any) string {
	limits := asList(arg)
	inside := asNumber(value) >= asNumber(limits[0]) && asNumber(value) <= asNumber(limits[1])
	return messageUnless(inside, "value should be between %s and %s", formatInteger(limits[0]), formatInteger(limits[1]))
}

// matchEach checks a list of {pattern, err}: all must match, or none.
func matchEach(value, arg any, wanted bool) string {
	for _, item := range asList(arg) {
		rule, _ := item.(map[string]any)
		if luaMatch(asString(value), asString(rule["pattern"])) != wanted {
			return messageOr(rule["err"], "invalid value: "+luaText(value))
		}
	}
	return ""
}

func matchAny(_ *field, value, arg any) string {
	rule, _ := arg.(map[string]any)
	for _, pattern := range asList(rule["patterns"]) {
		if luaMatch(asString(value), asString(pattern)) {
			return ""
		}
	}
	return messageOr(rule["err"], "invalid value: "+luaText(value))
}

func messageOr(own any, message string) string {
	if text, ok := own.(string); ok {
		return text
	}
	return message
}

// exclusiveSubsets checks that all elements that are in one of the subsets are in the same one.
func exclusiveSubsets(_ *field, value, arg any) string {
	of := map[any]int{}
	subsets := asList(arg)
	for i, subset := range subsets {
		for _, element := range asList(subset) {
			of[element] = i
		}
	}
	var met []int
	for _, element := range tableItems(value) {
		if i, in := of[element]; in && !slices.Contains(met, i) {
			met = append(met, i)
		}
	}
	named := make([]string, len(met))
	for i, subset := range met {
		named[i] = "(" + quoteNames(fieldNames(subsets[subset])) + ")"
	}
	return messageUnless(len(met) <= 1, "these sets are mutually exclusive: %s", strings.Join(named, ", "))
}

// isRegex reports whether PCRE, which Kong uses, compiles pattern. Go's engine has no look-around, atomic groups,
// possessive repetition and back references, so these are replaced before Go compiles the pattern.
func isRegex(pattern string) bool {
	_, err := regexp.Compile(pattern)
	if err == nil {
		return true
	}
	plain := notInGo.ReplaceAllStringFunc(pattern, func(construct string) string {
		switch {
		case strings.HasPrefix(construct, `\\`), strings.HasPrefix(construct, `\(`):
			return construct
		case strings.HasPrefix(construct, `(?`):
			return `(?:`
		case strings.HasPrefix(construct, `\`):
			return `a`
		}
		return construct[:len(construct)-1]
	})
	_, err = regexp.Compile(plain)
	return err == nil
}

var notInGo = regexp.MustCompile(
	`\\\\|\\\(|\(\?(?:=|!|<=|<!|>|\|)|\\[1-9hHKGRXZeN]|\\k<\w+>|\\g\{?-?\w+\}?|[*+?}]\+`)

// messageUnless formats a message, and returns "" where ok holds.
func messageUnless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// asList returns an attribute of a schema as a list.
func asList(value any) []any {
	items, _ := value.([]any)
	return items
}

// tableItems returns the elements of a table. Any other value raises.
func tableItems(value any) []any {
	t, ok := value.(*table)
	if !ok {
		raise("attempt to get length of %s", luaText(value))
	}
	out := make([]any, t.length())
	for i := range out {
		out[i] = t.entries[i+1]
	}
	return out
}

// joinScalars joins the scalars of an attribute. Lua cannot join other values, and raises.
func joinScalars(value any) string {
	var out []string
	for _, item := range asList(value) {
		switch item.(type) {
		case string, float64:
			out = append(out, luaText(item))
		default:
			raise("invalid value (%s) in table for 'concat'", luaText(item))
		}
	}
	return strings.Join(out, ", ")
}

func fieldNames(value any) []string {
	var names []string
	for _, item := range asList(value) {
		names = append(names, luaText(item))
	}
	return names
}

func quoteNames(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = "'" + name + "'"
	}
	return strings.Join(out, ", ")
}
