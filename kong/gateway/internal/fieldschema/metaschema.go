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

// The rules of this file are those of Kong's metaschema, the schema of schemas. A schema that breaks one keeps the
// plugin from being loaded.

// attribute says what the value of an attribute may be, and on which types of fields it may stand (nil: on all).
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
	"type": {nonEmpty, nil}, "required": {boolean, nil}, "reference": {nonEmpty, nil}, "description": {described, nil},
	"examples": {anyList, nil}, "auto": {boolean, nil}, "unique": {boolean, withIndex},
	"unique_across_ws": {boolean, withIndex}, "on_delete": {onDelete, nil}, "default": {anything, nil},
	"abstract":           {boolean, []string{"string", "number", "integer", "record", "array", "set", "map"}},
	"generate_admin_api": {boolean, nil}, "immutable": {boolean, nil}, "err": {nonEmpty, nil},
	"encrypted": {boolean, nil}, "referenceable": {boolean, nil},
	"transient":   {boolean, []string{"string", "number", "integer", "array", "set", "boolean"}},
	"deprecation": {deprecation, nil},

	"between": {twoNumbers, numeric}, "eq": {anything, nil}, "ne": {anything, nil}, "gt": {aNumber, nil},
	"len_eq": {wholeNumber, withLength}, "len_min": {wholeNumber, nil}, "len_max": {wholeNumber, nil},
	"match": {pattern, onlyStrings}, "not_match": {pattern, nil}, "match_all": {patternList, nil},
	"match_none": {patternList, nil}, "match_any": {patternSet, nil}, "starts_with": {nonEmpty, nil},
	"one_of": {anyList, []string{"string", "number", "integer"}}, "not_one_of": {anyList, nil},
	"contains": {anything, listed}, "is_regex": {boolean, onlyStrings}, "timestamp": {boolean, numeric},
	"uuid": {boolean, onlyStrings}, "mutually_exclusive_subsets": {listsOfWords, nil},

	"elements": {definition, nil}, "keys": {definition, nil}, "values": {definition, nil}, "fields": {anyList, nil},
	"entity_checks": {anyList, nil}, "shorthand_fields": {noShorthands, nil},
}

// needs are the attributes without which a field of a type is incomplete.
var needs = map[string][]string{
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
		rule, known := attributes[key]
		if !known {
			return fmt.Errorf("%s: unknown attribute %q", path, key)
		}
		if rule.kinds != nil && !slices.Contains(rule.kinds, kind) {
			return fmt.Errorf("%s: field of type '%s' cannot have attribute '%s'", path, kind, key)
		}
		if err := rule.check(attrs[key]); err != nil {
			return fmt.Errorf("%s: %s: %w", path, key, err)
		}
	}
	for _, needed := range needs[kind] {
		if _, has := attrs[needed]; !has && attrs["abstract"] != true {
			return fmt.Errorf("%s: field of type '%s' must declare '%s'", path, kind, needed)
		}
	}
	if attrs["unique_across_ws"] == true && attrs["unique"] != true {
		return fmt.Errorf("%s: unique: required field missing", path)
	}
	return nil
}

func anything(any) error { return nil }

func boolean(value any) error {
	if _, ok := value.(bool); !ok {
		return errors.New("expected a boolean")
	}
	return nil
}

func nonEmpty(value any) error {
	switch s, ok := value.(string); {
	case !ok:
		return errors.New("expected a string")
	case s == "":
		return errors.New("length must be at least 1")
	}
	return nil
}

func described(value any) error {
	const least, most = 10, 500
	if s, ok := value.(string); !ok || len(s) < least || len(s) > most {
		return fmt.Errorf("length must be %d to %d", least, most)
	}
	return nil
}

func onDelete(value any) error {
	if s, ok := value.(string); !ok || !slices.Contains([]string{"restrict", "cascade", "null"}, s) {
		return errors.New("expected one of: restrict, cascade, null")
	}
	return nil
}

func aNumber(value any) error {
	if _, ok := value.(float64); !ok {
		return errors.New("expected a number")
	}
	return nil
}

func wholeNumber(value any) error {
	if n, ok := value.(float64); !ok || n != float64(int64(n)) {
		return errors.New("expected an integer")
	}
	return nil
}

func twoNumbers(value any) error {
	const bounds = 2
	if len(list(value)) != bounds {
		return fmt.Errorf("length must be %d", bounds)
	}
	return errors.Join(aNumber(list(value)[0]), aNumber(list(value)[1]))
}

func anyList(value any) error {
	if object, ok := value.(map[string]any); ok && len(object) == 0 {
		return nil // Lua has one empty table
	}
	if _, ok := value.([]any); !ok {
		return errors.New("expected an array")
	}
	if slices.Contains(list(value), nil) {
		return errors.New("required field missing")
	}
	return nil
}

func definition(value any) error {
	if _, ok := value.(map[string]any); !ok {
		return errors.New("expected a record")
	}
	return nil
}

func pattern(value any) error {
	if err := nonEmpty(value); err != nil {
		return err
	}
	if err := checkPattern(text(value)); err != nil {
		return fmt.Errorf("pattern %q: %w", value, err)
	}
	return nil
}

func patternList(value any) error {
	if err := anyList(value); err != nil {
		return err
	}
	for _, item := range list(value) {
		rule, _ := item.(map[string]any)
		if err := onlyKeys(rule, "pattern", "err"); err != nil {
			return err
		}
		if err := pattern(rule["pattern"]); err != nil {
			return err
		}
	}
	return nil
}

func patternSet(value any) error {
	rule, _ := value.(map[string]any)
	if err := onlyKeys(rule, "patterns", "err"); err != nil {
		return err
	}
	if err := anyList(rule["patterns"]); err != nil {
		return fmt.Errorf("patterns: %w", err)
	}
	for _, item := range list(rule["patterns"]) {
		if err := pattern(item); err != nil {
			return err
		}
	}
	return nil
}

func listsOfWords(value any) error {
	if err := anyList(value); err != nil {
		return err
	}
	for _, subset := range list(value) {
		if err := wordList(subset); err != nil {
			return err
		}
	}
	return nil
}

func wordList(value any) error {
	if err := anyList(value); err != nil {
		return err
	}
	for _, item := range list(value) {
		if err := nonEmpty(item); err != nil {
			return err
		}
	}
	return nil
}

func deprecation(value any) error {
	rule, _ := value.(map[string]any)
	if err := onlyKeys(rule, "message", "removal_in_version", "old_default", "replaced_with"); err != nil {
		return err
	}
	return errors.Join(nonEmpty(rule["message"]), nonEmpty(rule["removal_in_version"]))
}

// noShorthands denies shorthand fields: each needs a function, which JSON cannot hold.
func noShorthands(value any) error {
	if err := anyList(value); err != nil || len(list(value)) == 0 {
		return err
	}
	return errors.New("func: required field missing")
}

func onlyKeys(rule map[string]any, known ...string) error {
	if rule == nil {
		return errors.New("expected a record")
	}
	for _, key := range sortedKeys(rule) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("%s: unknown field", key)
		}
	}
	return nil
}

// checkKeys are the arguments of the entity checks that take a record.
var checkKeys = map[string][]string{
	"conditional": {"if_field", "if_match", "then_field", "then_match", "then_err"},
	"conditional_at_least_one_of": {
		"if_field", "if_match", "then_at_least_one_of", "then_err", "else_match", "else_then_at_least_one_of",
		"else_then_err",
	},
	"mutually_exclusive_sets": {"set1", "set2"},
}

// compileChecks reads entity checks over f's fields.
func (f *field) compileChecks(path string, checks any) ([]check, error) {
	var out []check
	for i, item := range list(checks) {
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
	if _, known := entityChecks[c.name]; !known {
		return fmt.Errorf("unknown check %q", c.name)
	}
	arg, isObject := c.arg.(map[string]any)
	if keys, wanted := checkKeys[c.name]; wanted != isObject {
		return fmt.Errorf("%s: wrong type of argument", c.name)
	} else if isObject {
		if err := onlyKeys(arg, keys...); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	names, _ := c.sources()
	if len(names) == 0 {
		return fmt.Errorf("%s: names no fields", c.name)
	}
	for _, name := range names {
		if f.at(name) == nil {
			return fmt.Errorf("%s: field %q is not defined", c.name, name)
		}
	}
	for key, about := range map[string]string{"if_match": "if_field", "else_match": "if_field", "then_match": "then_field"} {
		match, given := arg[key]
		if !given {
			continue
		}
		narrowed, err := f.at(text(arg[about])).narrowed(match)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", c.name, key, err)
		}
		c.match[key] = narrowed
	}
	return c.complete()
}

// complete checks that a conditional check has the patterns that Kong reads.
func (c check) complete() error {
	if c.name == "conditional" && (c.match["if_match"] == nil || c.match["then_match"] == nil) ||
		c.name == "conditional_at_least_one_of" && c.match["if_match"] == nil {
		return fmt.Errorf("%s: needs if_match and what follows", c.name)
	}
	return nil
}

// narrowed returns the field with a rule's attributes in front of its own.
func (f *field) narrowed(match any) (*field, error) {
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

// compileInner compiles the elements, keys and values that a rule has in front of the field's own.
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
