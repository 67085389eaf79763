package fieldschema

import (
	"fmt"
	"slices"
	"strings"
)

// runChecks applies the record's cross-field rules. failed names the fields
// that are already known to be wrong.
func (c *checker) runChecks(path string, f *field, object map[string]any, failed map[string]bool) {
	for _, rule := range f.checks {
		names := sources(rule)
		if slices.ContainsFunc(names, func(name string) bool { return isReferenced(f, object, name) }) {
			continue
		}
		run, known := entityCheckNamed(rule.name)
		if !known || !run.withFaults && slices.ContainsFunc(names, func(name string) bool { return failed[name] }) {
			continue
		}
		run.check(c, path, f, object, rule.arg)
	}
}

// entityCheck is one of Kong's cross-field rules. withFaults: it runs even
// when one of its fields is wrong by itself.
type entityCheck struct {
	withFaults bool
	check      func(c *checker, path string, f *field, object map[string]any, arg any)
}

// entityCheckNamed finds a rule; ok is false for one that Kong does not have,
// or that cannot travel as JSON.
func entityCheckNamed(name string) (rule entityCheck, ok bool) {
	switch name {
	case "at_least_one_of":
		return entityCheck{true, counted("at least one of these fields must be non-empty: %s",
			func(filled, _ int) bool { return filled > 0 })}, true
	case "only_one_of":
		return entityCheck{true, counted("exactly one of these fields must be non-empty: %s",
			func(filled, _ int) bool { return filled == 1 })}, true
	case "mutually_required":
		return entityCheck{false, counted("all or none of these fields must be set: %s",
			func(filled, all int) bool { return filled == 0 || filled == all })}, true
	case "mutually_exclusive":
		return entityCheck{false, counted("only one or none of these fields must be set: %s",
			func(filled, _ int) bool { return filled <= 1 })}, true
	case "distinct":
		return entityCheck{true, distinct}, true
	case "conditional":
		return entityCheck{true, conditional}, true
	case "conditional_at_least_one_of":
		return entityCheck{true, conditionalAtLeastOneOf}, true
	case "mutually_exclusive_sets":
		return entityCheck{false, mutuallyExclusiveSets}, true
	}
	return entityCheck{}, false
}

// checkable refuses a rule that Kong's schema of schemas would refuse, or whose
// fields do not exist.
func (f *field) checkable(rule check) error {
	if _, known := entityCheckNamed(rule.name); !known {
		return fmt.Errorf("unknown check %q", rule.name)
	}
	names := sources(rule)
	if len(names) == 0 {
		return fmt.Errorf("%s: names no fields", rule.name)
	}
	for _, name := range names {
		if f.at(name) == nil {
			return fmt.Errorf("%s: field %q is not defined", rule.name, name)
		}
	}
	return nil
}

// sources are the fields a rule looks at.
func sources(rule check) []string {
	arg, isObject := rule.arg.(map[string]any)
	if !isObject {
		return words(rule.arg)
	}
	var names []string
	for _, key := range []string{
		"if_field", "then_field", "then_at_least_one_of", "else_then_at_least_one_of", "set1", "set2",
	} {
		if name, ok := arg[key].(string); ok {
			names = append(names, name)
		}
		names = append(names, words(arg[key])...)
	}
	return names
}

func words(value any) []string {
	var names []string
	for _, item := range list(value) {
		names = append(names, text(item))
	}
	return names
}

func counted(message string, ok func(filled, all int) bool) func(*checker, string, *field, map[string]any, any) {
	return func(c *checker, path string, _ *field, object map[string]any, arg any) {
		names := words(arg)
		if !ok(len(filledOf(object, names)), len(names)) {
			c.fault(path, message, quoted(names))
		}
	}
}

func distinct(c *checker, path string, _ *field, object map[string]any, arg any) {
	var seen []any
	for _, name := range words(arg) {
		value := valueAt(object, name)
		if containsScalar(seen, value) {
			c.fault(path, "values of these fields must be distinct: %s", quoted(words(arg)))
			return
		}
		if filled(value) {
			seen = append(seen, value)
		}
	}
}

func conditional(c *checker, path string, f *field, object map[string]any, arg any) {
	rule, _ := arg.(map[string]any)
	ifField, thenField := text(rule["if_field"]), text(rule["then_field"])
	if !matches(f.at(ifField).narrowed(rule["if_match"]), valueAt(object, ifField)) {
		return
	}
	before := len(c.faults)
	c.validate(join(path, thenField), f.at(thenField).narrowed(rule["then_match"]), valueAt(object, thenField))
	if len(c.faults) == before {
		return
	}
	if own, ok := rule["then_err"].(string); ok {
		c.fault(path, "%s", strings.ReplaceAll(own, "%s", ifField))
		return
	}
	c.fault(path, "failed conditional validation given value of field '%s'", ifField)
}

func conditionalAtLeastOneOf(c *checker, path string, f *field, object map[string]any, arg any) {
	rule, _ := arg.(map[string]any)
	ifField := text(rule["if_field"])
	value, branch := valueAt(object, ifField), "then"
	if value == nil {
		return
	}
	if !matches(f.at(ifField).narrowed(rule["if_match"]), value) {
		if rule["else_match"] == nil || !matches(f.at(ifField).narrowed(rule["else_match"]), value) {
			return
		}
		branch = "else_then"
	}
	names := words(rule[branch+"_at_least_one_of"])
	if len(filledOf(object, names)) > 0 {
		return
	}
	if own, ok := rule[branch+"_err"].(string); ok {
		c.fault(path, "%s", strings.ReplaceAll(own, "%s", quoted(names)))
		return
	}
	c.fault(path, "at least one of these fields must be non-empty: %s", quoted(names))
}

func mutuallyExclusiveSets(c *checker, path string, _ *field, object map[string]any, arg any) {
	rule, _ := arg.(map[string]any)
	first, second := filledOf(object, words(rule["set1"])), filledOf(object, words(rule["set2"]))
	if len(first) > 0 && len(second) > 0 {
		c.fault(path, "these sets are mutually exclusive: (%s), (%s)", quoted(first), quoted(second))
	}
}

// narrowed is the field with a rule's attributes on top of its own.
func (f *field) narrowed(match any) *field {
	over, _ := match.(map[string]any)
	n := *f
	n.attrs = merged(f.attrs, over)
	n.checks = nil
	return &n
}

func valueAt(object map[string]any, name string) any {
	head, rest, nested := strings.Cut(name, ".")
	if !nested {
		return object[head]
	}
	inner, _ := object[head].(map[string]any)
	return valueAt(inner, rest)
}

func isReferenced(f *field, object map[string]any, name string) bool {
	_, is := reference(valueAt(object, name))
	return is && f.at(name).is("referenceable")
}

func filled(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

func filledOf(object map[string]any, names []string) []string {
	var out []string
	for _, name := range names {
		if filled(valueAt(object, name)) {
			out = append(out, name)
		}
	}
	return out
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = "'" + name + "'"
	}
	return strings.Join(out, ", ")
}
