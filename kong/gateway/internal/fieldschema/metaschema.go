package fieldschema

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
)

// The rules of this file are those of Kong's metaschema, the schema of schemas. Kong does not load a plugin whose
// schema breaks one.

// attribute holds the rule for an attribute's value, and the types of fields that may have the attribute (nil: all).
type attribute struct {
	check func(value any) error
	kinds []string
}

var (
	numeric     = []string{"integer", "number"}
	listed      = []string{"array", "set"}
	withLength  = []string{"array", "set", "string", "map"}
	withIndex   = []string{"string", "number", "integer", "foreign"}
	onlyStrings = []string{"string"}
)

var attributes = map[string]attribute{
	"type": {checkNonEmpty, nil}, "required": {checkBoolean, nil}, "reference": {checkNonEmpty, nil},
	"description": {checkDescription, nil}, "auto": {checkBoolean, nil}, "unique": {checkBoolean, withIndex},
	"default": {acceptAny, nil}, "err": {checkNonEmpty, nil}, "encrypted": {checkBoolean, nil},
	"abstract":      {checkBoolean, []string{"string", "number", "integer", "record", "array", "set", "map"}},
	"referenceable": {checkBoolean, nil},

	"between": {checkTwoNumbers, numeric}, "eq": {acceptAny, nil}, "ne": {acceptAny, nil}, "gt": {checkNumber, nil},
	"len_eq": {checkInteger, withLength}, "len_min": {checkInteger, nil}, "len_max": {checkInteger, nil},
	"match": {checkPatternAttribute, onlyStrings}, "not_match": {checkPatternAttribute, nil},
	"match_all": {checkPatternList, nil}, "match_none": {checkPatternList, nil}, "match_any": {checkPatternSet, nil},
	"starts_with": {checkNonEmpty, nil},
	"one_of":      {checkList, []string{"string", "number", "integer"}}, "not_one_of": {checkList, nil},
	"contains": {acceptAny, listed}, "is_regex": {checkBoolean, onlyStrings}, "timestamp": {checkBoolean, numeric},
	"uuid": {checkBoolean, onlyStrings}, "mutually_exclusive_subsets": {checkStringLists, nil},

	"elements": {checkRecord, nil}, "keys": {checkRecord, nil}, "values": {checkRecord, nil}, "fields": {checkList, nil},
	"entity_checks": {checkList, nil},
}

// requiredAttributes holds the attributes without which a field of a type is incomplete.
var requiredAttributes = map[string][]string{
	"array": {"elements"}, "set": {"elements"}, "map": {"keys", "values"}, "record": {"fields"},
}

var kinds = []string{
	"array", "set", "string", "number", "boolean", "integer", "foreign", "map", "record", "function",
}

func checkAttributes(path, kind string, attrs map[string]any) error {
	path = cmp.Or(path, "schema")
	if !slices.Contains(kinds, kind) {
		if kind == "json" {
			return fmt.Errorf("%s: fields of type json are not simulated", path)
		}
		return fmt.Errorf("%s: invalid type: %v", path, attrs["type"])
	}
	for _, key := range sortedKeys(attrs) {
		rule, exists := attributes[key]
		if !exists {
			return fmt.Errorf("%s: unknown attribute %q, or one that is not simulated", path, key)
		}
		if rule.kinds != nil && !slices.Contains(rule.kinds, kind) {
			return fmt.Errorf("%s: field of type '%s' cannot have attribute '%s'", path, kind, key)
		}
		if err := rule.check(attrs[key]); err != nil {
			return fmt.Errorf("%s: %s: %w", path, key, err)
		}
	}
	for _, needed := range requiredAttributes[kind] {
		if _, has := attrs[needed]; !has && attrs["abstract"] != true {
			return fmt.Errorf("%s: field of type '%s' must declare '%s'", path, kind, needed)
		}
	}
	return nil
}

func acceptAny(any) error { return nil }

func checkBoolean(value any) error {
	if _, ok := value.(bool); !ok {
		return errors.New("expected a boolean")
	}
	return nil
}

func checkNonEmpty(value any) error {
	switch s, ok := value.(string); {
	case !ok:
		return errors.New("expected a string")
	case s == "":
		return errors.New("length must be at least 1")
	}
	return nil
}

func checkDescription(value any) error {
	const least, most = 10, 500
	if s, ok := value.(string); !ok || len(s) < least || len(s) > most {
		return fmt.Errorf("length must be %d to %d", least, most)
	}
	return nil
}

func checkNumber(value any) error {
	if _, ok := value.(float64); !ok {
		return errors.New("expected a number")
	}
	return nil
}

func checkInteger(value any) error {
	if n, ok := value.(float64); !ok || n != float64(int64(n)) {
		return errors.New("expected an integer")
	}
	return nil
}

func checkTwoNumbers(value any) error {
	const bounds = 2
	if len(asList(value)) != bounds {
		return fmt.Errorf("length must be %d", bounds)
	}
	return errors.Join(checkNumber(asList(value)[0]), checkNumber(asList(value)[1]))
}

func checkList(value any) error {
	if object, ok := value.(map[string]any); ok && len(object) == 0 {
		return nil // Lua has one empty table
	}
	if _, ok := value.([]any); !ok {
		return errors.New("expected an array")
	}
	if slices.Contains(asList(value), nil) {
		return errors.New("required field missing")
	}
	return nil
}

func checkRecord(value any) error {
	if _, ok := value.(map[string]any); !ok {
		return errors.New("expected a record")
	}
	return nil
}

func checkPatternAttribute(value any) error {
	if err := checkNonEmpty(value); err != nil {
		return err
	}
	if err := checkPattern(luaText(value)); err != nil {
		return fmt.Errorf("pattern %q: %w", value, err)
	}
	return nil
}

func checkPatternList(value any) error {
	if err := checkList(value); err != nil {
		return err
	}
	for _, item := range asList(value) {
		rule, _ := item.(map[string]any)
		if err := checkOnlyKeys(rule, "pattern", "err"); err != nil {
			return err
		}
		if err := checkPatternAttribute(rule["pattern"]); err != nil {
			return err
		}
	}
	return nil
}

func checkPatternSet(value any) error {
	rule, _ := value.(map[string]any)
	if err := checkOnlyKeys(rule, "patterns", "err"); err != nil {
		return err
	}
	if err := checkList(rule["patterns"]); err != nil {
		return fmt.Errorf("patterns: %w", err)
	}
	for _, item := range asList(rule["patterns"]) {
		if err := checkPatternAttribute(item); err != nil {
			return err
		}
	}
	return nil
}

func checkStringLists(value any) error {
	if err := checkList(value); err != nil {
		return err
	}
	for _, subset := range asList(value) {
		if err := checkStringList(subset); err != nil {
			return err
		}
	}
	return nil
}

func checkStringList(value any) error {
	if err := checkList(value); err != nil {
		return err
	}
	for _, item := range asList(value) {
		if err := checkNonEmpty(item); err != nil {
			return err
		}
	}
	return nil
}

func checkOnlyKeys(rule map[string]any, allowed ...string) error {
	if rule == nil {
		return errors.New("expected a record")
	}
	for _, key := range sortedKeys(rule) {
		if !slices.Contains(allowed, key) {
			return fmt.Errorf("%s: unknown field", key)
		}
	}
	return nil
}

// checkArguments holds the arguments of the entity checks that take a record.
var checkArguments = map[string][]string{
	"conditional":                 {"if_field", "if_match", "then_field", "then_match", "then_err"},
	"conditional_at_least_one_of": {"if_field", "if_match", "then_at_least_one_of", "then_err"},
}

// compileChecks compiles entity checks over f's fields.
func (f *field) compileChecks(path string, checks any) ([]check, error) {
	var out []check
	for i, item := range asList(checks) {
		at := strings.TrimPrefix(fmt.Sprintf("%s.entity_checks[%d]", path, i), ".")
		entry, ok := item.(map[string]any)
		if !ok || len(entry) != 1 {
			return nil, fmt.Errorf("%s: expected an object with one key", at)
		}
		for name, arg := range entry {
			c := check{
				name: name, arg: arg, kind: entityChecks[name], match: map[string]*field{},
				inherits: new(atomic.Bool),
			}
			if err := f.compileCheck(c); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
			out = append(out, c)
		}
	}
	return out, nil
}

func (f *field) compileCheck(c check) error {
	if _, exists := entityChecks[c.name]; !exists {
		return fmt.Errorf("unknown check %q, or one that is not simulated", c.name)
	}
	arg, isObject := c.arg.(map[string]any)
	if keys, wanted := checkArguments[c.name]; wanted != isObject {
		return fmt.Errorf("%s: wrong type of argument", c.name)
	} else if isObject {
		if err := checkOnlyKeys(arg, keys...); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	names, _ := c.sources()
	if len(names) == 0 {
		return fmt.Errorf("%s: names no fields", c.name)
	}
	for _, name := range names {
		if f.childAt(name) == nil {
			return fmt.Errorf("%s: field %q is not defined", c.name, name)
		}
	}
	fields := map[string]string{"if_match": "if_field", "then_match": "then_field"}
	for key, about := range fields {
		match, given := arg[key]
		if !given {
			continue
		}
		narrowed, err := f.childAt(luaText(arg[about])).withAttributes(match)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", c.name, key, err)
		}
		c.match[key] = narrowed
	}
	return c.checkComplete()
}

// checkComplete returns an error for a conditional check without the patterns that Kong reads.
func (c check) checkComplete() error {
	if c.name == "conditional" && (c.match["if_match"] == nil || c.match["then_match"] == nil) ||
		c.name == "conditional_at_least_one_of" && c.match["if_match"] == nil {
		return fmt.Errorf("%s: needs if_match and what follows", c.name)
	}
	return nil
}

// withAttributes returns the field with a rule's attributes before its own.
func (f *field) withAttributes(match any) (*field, error) {
	over, ok := match.(map[string]any)
	if !ok {
		return nil, errors.New("expected a record")
	}
	for _, key := range sortedKeys(over) {
		isValidator := slices.ContainsFunc(validators, func(v validator) bool { return v.attr == key })
		if !isValidator && !slices.Contains([]string{"required", "elements", "keys", "values"}, key) {
			return nil, fmt.Errorf("%s: unknown field", key)
		}
		if err := attributes[key].check(over[key]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	n := *f
	n.attrs = maps.Clone(f.attrs)
	maps.Copy(n.attrs, over)
	return &n, n.compileInner(over)
}

// compileInner compiles the elements, keys and values of a rule, in place of the field's own.
func (f *field) compileInner(over map[string]any) error {
	for attr, inner := range map[string]**field{"elements": &f.elements, "keys": &f.keys, "values": &f.values} {
		attrs, given := over[attr].(map[string]any)
		if !given {
			continue
		}
		required := maps.Clone(attrs)
		required["required"] = true
		compiled, err := compile(attr, "", required)
		if err != nil {
			return err
		}
		*inner = compiled
	}
	return nil
}
