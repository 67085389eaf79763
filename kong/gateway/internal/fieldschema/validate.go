package fieldschema

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// checker walks values along their schema and gathers faults.
type checker struct {
	faults []Fault
}

func (c *checker) fault(path, format string, args ...any) {
	fault := Fault{Path: path, Message: fmt.Sprintf(format, args...)}
	if !slices.Contains(c.faults, fault) { // a cross-field rule may look at a field again
		c.faults = append(c.faults, fault)
	}
}

// matches reports whether a value passes, without recording why not.
func matches(f *field, value any) bool {
	var c checker
	c.validate("", f, value)
	return len(c.faults) == 0
}

// validate checks one value against its definition, as Kong's
// Schema:validate_field does.
func (c *checker) validate(path string, f *field, value any) {
	if value == nil {
		c.validateNull(path, f)
		return
	}
	if eq, has := f.attrs["eq"]; has && eq == nil {
		c.fault(path, "%s", own(f, "value must be null"))
		return
	}
	ok := false
	switch f.kind {
	case "record":
		ok = c.validateRecord(path, f, value)
	case "array", "set":
		ok = c.validateList(path, f, value)
	case "map":
		ok = c.validateMap(path, f, value)
	default:
		if _, isReference := reference(value); isReference && f.kind == "string" && f.is("referenceable") {
			return
		}
		ok = c.validateScalar(path, f, value)
	}
	if ok {
		c.runValidators(path, f, value)
	}
}

func (c *checker) validateNull(path string, f *field) {
	if ne, has := f.attrs["ne"]; has && ne == nil {
		c.fault(path, "%s", own(f, "value must not be null"))
		return
	}
	if eq := f.attrs["eq"]; eq != nil {
		c.fault(path, "value must be %s", text(eq))
		return
	}
	if f.is("required") {
		c.fault(path, "required field missing")
	}
}

func (c *checker) validateRecord(path string, f *field, value any) bool {
	object, ok := value.(map[string]any)
	if !ok {
		c.fault(path, "expected a record")
		return false
	}
	before := len(c.faults)
	for _, key := range sortedKeys(object) {
		if f.child(key) == nil {
			c.fault(join(path, key), "unknown field")
		}
	}
	failed := map[string]bool{}
	for _, child := range f.fields {
		given, present := object[child.name]
		if !present && !child.is("required") {
			continue
		}
		count := len(c.faults)
		c.validate(join(path, child.name), child, given)
		failed[child.name] = len(c.faults) > count
	}
	c.runChecks(path, f, object, failed)
	return len(c.faults) == before
}

func (c *checker) validateList(path string, f *field, value any) bool {
	list, ok := value.([]any)
	if !ok {
		c.fault(path, "expected %s %s", map[string]string{"array": "an", "set": "a"}[f.kind], f.kind)
		return false
	}
	before := len(c.faults)
	for i, item := range list {
		c.validate(fmt.Sprintf("%s[%d]", path, i), f.elements, item)
	}
	return len(c.faults) == before
}

func (c *checker) validateMap(path string, f *field, value any) bool {
	object, ok := value.(map[string]any)
	if !ok {
		c.fault(path, "expected a map")
		return false
	}
	before := len(c.faults)
	for _, key := range sortedKeys(object) {
		at := fmt.Sprintf("%s[%q]", path, key)
		c.validate(at, f.keys, key)
		c.validate(at, f.values, object[key])
	}
	return len(c.faults) == before
}

func (c *checker) validateScalar(path string, f *field, value any) bool {
	ok, want := true, "a "+f.kind
	switch f.kind {
	case "string":
		_, ok = value.(string)
	case "boolean":
		_, ok = value.(bool)
	case "number":
		_, ok = value.(float64)
	case "integer":
		want = "an integer"
		number, isNumber := value.(float64)
		ok = isNumber && number == math.Floor(number) && !math.IsInf(number, 0)
	}
	if !ok {
		c.fault(path, "expected %s", want)
	}
	return ok
}

// runValidators applies the attributes in Kong's order; the first that fails
// is reported.
func (c *checker) runValidators(path string, f *field, value any) {
	for _, v := range validators {
		arg, has := f.attrs[v.attr]
		if !has && v.attr == "len_min" && f.kind == "string" {
			arg, has = 1.0, true // an empty string is no value in Kong
		}
		if !has {
			continue
		}
		if message := v.check(value, arg); message != "" {
			c.fault(path, "%s", own(f, message))
			return
		}
	}
}

// own is the message the schema has for a field, if it has one.
func own(f *field, message string) string {
	if text, ok := f.attrs["err"].(string); ok {
		return text
	}
	return message
}

type validator struct {
	attr  string
	check func(value, arg any) string
}

var validators = []validator{
	{"eq", func(v, arg any) string { return unless(equal(v, arg), "value must be %s", text(arg)) }},
	{"ne", func(v, arg any) string { return unless(!equal(v, arg), "value must not be %s", text(v)) }},
	{"not_one_of", func(v, arg any) string {
		return unless(!containsScalar(list(arg), v), "must not be one of: %s", texts(arg))
	}},
	{"one_of", func(v, arg any) string {
		return unless(containsScalar(list(arg), v), "expected one of: %s", texts(arg))
	}},
	{"gt", func(v, arg any) string {
		return unless(number(v) > number(arg), "value must be greater than %s", text(arg))
	}},
	{"timestamp", func(v, _ any) string { return unless(number(v) > 0, "expected a valid timestamp") }},
	{"uuid", func(v, _ any) string { return unless(uuidPattern.MatchString(text(v)), "expected a valid UUID") }},
	{"is_regex", func(v, _ any) string {
		_, err := regexp.Compile(text(v))
		return unless(err == nil, "not a valid regex: %s", text(v))
	}},
	{"between", between},
	{"len_eq", func(v, arg any) string { return unless(length(v) == number(arg), "length must be %s", text(arg)) }},
	{"len_min", func(v, arg any) string {
		return unless(length(v) >= number(arg), "length must be at least %s", text(arg))
	}},
	{"len_max", func(v, arg any) string {
		return unless(length(v) <= number(arg), "length must be at most %s", text(arg))
	}},
	{"starts_with", func(v, arg any) string {
		return unless(strings.HasPrefix(text(v), text(arg)), "should start with: %s", text(arg))
	}},
	{"not_match", func(v, arg any) string {
		return unless(!luaMatch(text(v), text(arg)), "invalid value: %s", text(v))
	}},
	{"match_none", func(v, arg any) string { return patterns(v, arg, false) }},
	{"match", func(v, arg any) string { return unless(luaMatch(text(v), text(arg)), "invalid value: %s", text(v)) }},
	{"match_all", func(v, arg any) string { return patterns(v, arg, true) }},
	{"match_any", matchAny},
	{"contains", func(v, arg any) string {
		return unless(containsScalar(list(v), arg), "expected to contain: %s", text(arg))
	}},
}

var uuidPattern = regexp.MustCompile(`^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func between(value, arg any) string {
	limits := list(arg)
	if len(limits) != 2 {
		return "error in schema prevents from validating this field"
	}
	inside := number(value) >= number(limits[0]) && number(value) <= number(limits[1])
	return unless(inside, "value should be between %s and %s", text(limits[0]), text(limits[1]))
}

// patterns is match_all (wanted) and match_none: a list of {pattern, err}.
func patterns(value, arg any, wanted bool) string {
	for _, item := range list(arg) {
		rule, _ := item.(map[string]any)
		if luaMatch(text(value), text(rule["pattern"])) != wanted {
			return text(rule["err"])
		}
	}
	return ""
}

func matchAny(value, arg any) string {
	rule, _ := arg.(map[string]any)
	for _, pattern := range list(rule["patterns"]) {
		if luaMatch(text(value), text(pattern)) {
			return ""
		}
	}
	return text(rule["err"])
}

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func list(value any) []any {
	items, _ := value.([]any)
	return items
}

func number(value any) float64 {
	n, _ := value.(float64)
	return n
}

func length(value any) float64 {
	switch v := value.(type) {
	case string:
		return float64(len(v))
	case []any:
		return float64(len(v))
	case map[string]any:
		return float64(len(v))
	}
	return 0
}

// text is Lua's tostring.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'g', 14, 64)
	}
	return fmt.Sprint(value)
}

func texts(arg any) string {
	items := list(arg)
	words := make([]string, len(items))
	for i, item := range items {
		words[i] = text(item)
	}
	return strings.Join(words, ", ")
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
