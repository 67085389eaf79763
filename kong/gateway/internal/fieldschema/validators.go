package fieldschema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// validator is one of Kong's checks of a single value; check returns the message of a value that does not pass.
type validator struct {
	attr  string
	check func(f *field, value, arg any) string
}

// validators are all of them, in Kong's order: the first that fails is reported.
var validators = []validator{
	{"eq", func(_ *field, v, arg any) string { return unless(v == arg, "value must be %s", text(arg)) }},
	{"ne", func(_ *field, v, arg any) string { return unless(v != arg, "value must not be %s", text(v)) }},
	{"not_one_of", func(_ *field, v, arg any) string {
		return unless(!slices.Contains(list(arg), v), "must not be one of: %s", joined(arg))
	}},
	{"one_of", func(_ *field, v, arg any) string {
		return unless(slices.Contains(list(arg), v), "expected one of: %s", joined(arg))
	}},
	{"gt", func(_ *field, v, arg any) string {
		return unless(number(v) > number(arg), "value must be greater than %s", text(arg))
	}},
	{"timestamp", func(_ *field, v, _ any) string { return unless(number(v) > 0, "expected a valid timestamp") }},
	{"uuid", func(_ *field, v, _ any) string {
		return unless(uuidPattern.MatchString(word(v)), "expected a valid UUID")
	}},
	{"is_regex", func(_ *field, v, _ any) string {
		return unless(isRegex(word(v)), "not a valid regex: %s", text(v))
	}},
	{"between", between},
	{"len_eq", func(f *field, v, arg any) string {
		return unless(f.length(v) == number(arg), "length must be %s", whole(arg))
	}},
	{"len_min", func(f *field, v, arg any) string {
		return unless(f.length(v) >= number(arg), "length must be at least %s", whole(arg))
	}},
	{"len_max", func(f *field, v, arg any) string {
		return unless(f.length(v) <= number(arg), "length must be at most %s", whole(arg))
	}},
	{"starts_with", func(_ *field, v, arg any) string {
		return unless(strings.HasPrefix(word(v), word(arg)), "should start with: %s", text(arg))
	}},
	{"not_match", func(_ *field, v, arg any) string {
		return unless(!luaMatch(word(v), word(arg)), "invalid value: %s", text(v))
	}},
	{"match_none", func(_ *field, v, arg any) string { return matchEach(v, arg, false) }},
	{"match", func(_ *field, v, arg any) string {
		return unless(luaMatch(word(v), word(arg)), "invalid value: %s", text(v))
	}},
	{"match_all", func(_ *field, v, arg any) string { return matchEach(v, arg, true) }},
	{"match_any", matchAny},
	{"contains", func(_ *field, v, arg any) string {
		return unless(slices.Contains(items(v), arg), "expected to contain: %s", text(arg))
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
			return f.own(message)
		}
	}
	if f.custom != nil {
		if message := f.custom(word(value)); message != "" {
			return f.own(message)
		}
	}
	return nil
}

// length returns the bytes of a string, the elements of a list, the entries of a map. Kong counts those of a map that
// was written as a list twice.
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
	raise("attempt to get length of %s", text(value))
	return 0
}

var uuidPattern = regexp.MustCompile(`^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func between(_ *field, value, arg any) string {
	limits := list(arg)
	inside := number(value) >= number(limits[0]) && number(value) <= number(limits[1])
	return unless(inside, "value should be between %s and %s", whole(limits[0]), whole(limits[1]))
}

// matchEach checks a list of {pattern, err}: all are to match, or none.
func matchEach(value, arg any, wanted bool) string {
	for _, item := range list(arg) {
		rule, _ := item.(map[string]any)
		if luaMatch(word(value), word(rule["pattern"])) != wanted {
			return ownOr(rule["err"], "invalid value: "+text(value))
		}
	}
	return ""
}

func matchAny(_ *field, value, arg any) string {
	rule, _ := arg.(map[string]any)
	for _, pattern := range list(rule["patterns"]) {
		if luaMatch(word(value), word(pattern)) {
			return ""
		}
	}
	return ownOr(rule["err"], "invalid value: "+text(value))
}

func ownOr(own any, message string) string {
	if text, ok := own.(string); ok {
		return text
	}
	return message
}

// exclusiveSubsets checks that all elements that are in one of the subsets are in the same one.
func exclusiveSubsets(_ *field, value, arg any) string {
	of := map[any]int{}
	subsets := list(arg)
	for i, subset := range subsets {
		for _, element := range list(subset) {
			of[element] = i
		}
	}
	var met []int
	for _, element := range items(value) {
		if i, in := of[element]; in && !slices.Contains(met, i) {
			met = append(met, i)
		}
	}
	named := make([]string, len(met))
	for i, subset := range met {
		named[i] = "(" + quoted(words(subsets[subset])) + ")"
	}
	return unless(len(met) <= 1, "these sets are mutually exclusive: %s", strings.Join(named, ", "))
}

// isRegex reports whether PCRE, which Kong uses, compiles pattern. Go's engine has no look-around, atomic groups,
// possessive repetition and back references; they are replaced before it judges the rest.
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
		case strings.HasPrefix(construct, `{`):
			return repetition(construct)
		}
		return construct[:len(construct)-1]
	})
	_, err = regexp.Compile(plain)
	return err == nil
}

var notInGo = regexp.MustCompile(
	`\\\\|\\\(|\(\?(?:=|!|<=|<!|>|\|)|\\[1-9hHKGRXZeN]|\\k<\w+>|\\g\{?-?\w+\}?|[*+?}]\+|\{\d+(?:,\d*)?\}`)

// repetition keeps a repetition that PCRE has but Go has not, one of more than 1,000, in its order.
func repetition(construct string) string {
	low, high, ranged := strings.Cut(strings.Trim(construct, "{}"), ",")
	from, err := strconv.Atoi(low)
	const most = 65535
	if err != nil || from > most {
		return construct
	}
	if to, err := strconv.Atoi(high); ranged && high != "" && (err != nil || to < from || to > most) {
		return construct
	}
	return "*"
}

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// list returns an attribute of a schema that is a list.
func list(value any) []any {
	items, _ := value.([]any)
	return items
}

// items returns the elements of a value that is a list.
func items(value any) []any {
	t, ok := value.(*table)
	if !ok {
		raise("attempt to get length of %s", text(value))
	}
	out := make([]any, t.length())
	for i := range out {
		out[i] = t.entries[i+1]
	}
	return out
}

// joined lists the scalars of an attribute; Lua cannot join others.
func joined(value any) string {
	var out []string
	for _, item := range list(value) {
		switch item.(type) {
		case string, float64:
			out = append(out, text(item))
		default:
			raise("invalid value (%s) in table for 'concat'", text(item))
		}
	}
	return strings.Join(out, ", ")
}

func words(value any) []string {
	var names []string
	for _, item := range list(value) {
		names = append(names, text(item))
	}
	return names
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = "'" + name + "'"
	}
	return strings.Join(out, ", ")
}
