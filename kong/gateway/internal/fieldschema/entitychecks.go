package fieldschema

import (
	"slices"
	"strings"
	"sync/atomic"
)

const (
	atLeastOne     = "at least one of these fields must be non-empty: "
	neededForCheck = "field required for entity check"
)

// check is one entry of entity_checks.
type check struct {
	name string
	arg  any
	kind entityCheck
	// match holds, by attribute, the fields of a conditional check with its patterns before their own attributes.
	match map[string]*field
	// inherits is set once a conditional check has read its then_field. From then on Kong's process finds the
	// attributes of that field in then_match, required too, and reports what is absent before it validates.
	inherits *atomic.Bool
}

// entityCheck is one of Kong's rules over several fields of a record. withMissing means that it runs even if fields are
// absent, withFaults that it runs even if one of them is wrong by itself.
type entityCheck struct {
	withMissing, withFaults bool
	// run returns the rule's message, "" if the record passes, and may add to the faults of fields.
	run func(rule check, record, faults *table) string
}

var entityChecks = map[string]entityCheck{
	"at_least_one_of": {true, true, countFilled(atLeastOne,
		func(filled, _ int) bool { return filled > 0 })},
	"only_one_of": {false, true, countFilled("exactly one of these fields must be non-empty: ",
		func(filled, _ int) bool { return filled == 1 })},
	"mutually_required": {true, false, countFilled("all or none of these fields must be set: ",
		func(filled, all int) bool { return filled == 0 || filled == all })},
	"mutually_exclusive": {true, false, countFilled("only one or none of these fields must be set: ",
		func(filled, _ int) bool { return filled <= 1 })},
	"distinct":                    {false, true, distinct},
	"conditional":                 {false, true, conditional},
	"conditional_at_least_one_of": {true, true, conditionalAtLeastOneOf},
}

// runCheck applies one rule to a record under the same conditions as Kong, and adds its verdict to the record's faults.
func (f *field) runCheck(rule check, record *table, full bool, faults *table) {
	kind := rule.kind
	sources, needed := rule.sources()
	var absent []string
	present, sound := false, true
	for _, name := range sources {
		value := valueAt(record, name)
		if isMissing(value) {
			if !kind.withMissing && slices.Contains(needed, name) {
				absent = append(absent, name)
			}
		} else {
			present = true
			if f.childAt(name).isReference(value) {
				return
			}
		}
		if _, faulty := faults.entries[name]; faulty {
			sound = false
		}
	}
	if !sound && !kind.withFaults || !present && !(kind.withMissing && full) {
		return
	}
	for _, name := range absent {
		setAt(faults, name, neededForCheck)
	}
	if absent != nil {
		return
	}
	if message := kind.run(rule, record, faults); message != "" {
		addEntityFault(faults, message)
	}
}

func addEntityFault(faults *table, message string) {
	all, ok := faults.get(entityKey).(*table)
	if !ok {
		all = newTable()
		faults.entries[entityKey] = all
	}
	all.entries[all.length()+1] = message
}

// isReference reports whether value is a vault reference in a field that may hold one. Rules ignore these.
func (f *field) isReference(value any) bool {
	_, isVault := parseReference(value)
	return isVault && f.kind == "string" && f.isSet("referenceable")
}

// sources returns the fields that a rule reads, and those of them that must not be absent.
func (c check) sources() (names, needed []string) {
	arg, isObject := c.arg.(map[string]any)
	if !isObject {
		names = fieldNames(c.arg)
		return names, names
	}
	for _, key := range sourceKeys[c.name] {
		if name, ok := arg[key].(string); ok {
			names = append(names, name)
		}
		names = append(names, fieldNames(arg[key])...)
	}
	if c.name == "conditional" {
		needed = names[:min(1, len(names))]
	}
	return names, needed
}

var sourceKeys = map[string][]string{
	"conditional":                 {"if_field", "then_field"},
	"conditional_at_least_one_of": {"if_field", "then_at_least_one_of"},
}

// countFilled returns a rule about how many of its fields are not empty.
func countFilled(message string, ok func(filled, all int) bool) func(check, *table, *table) string {
	return func(rule check, record, _ *table) string {
		names := fieldNames(rule.arg)
		return messageUnless(ok(len(filledFields(record, names)), len(names)), "%s%s", message, quoteNames(names))
	}
}

func distinct(rule check, record, _ *table) string {
	seen := map[any]bool{}
	for _, name := range fieldNames(rule.arg) {
		value := valueAt(record, name)
		if !isFilled(value) {
			continue
		}
		if seen[value] {
			return "values of these fields must be distinct: " + quoteNames(fieldNames(rule.arg))
		}
		seen[value] = true
	}
	return ""
}

func conditional(rule check, record, faults *table) string {
	arg, _ := rule.arg.(map[string]any)
	ifField, thenField := luaText(arg["if_field"]), luaText(arg["then_field"])
	if !rule.matches("if_match", valueAt(record, ifField)) {
		return ""
	}
	value := valueAt(record, thenField)
	if isMissing(value) {
		value = nil
	}
	failed := "failed conditional validation given value of field '" + ifField + "'"
	thenMatch, _ := arg["then_match"].(map[string]any)
	required := thenMatch["required"] == true || rule.inherits.Load() && rule.match["then_match"].isSet("required")
	if required && value == nil {
		setAt(faults, thenField, missingField)
		return failed
	}
	rule.inherits.Store(true)
	fault := rule.match["then_match"].validate(value)
	if fault == nil {
		return ""
	}
	setAt(faults, thenField, fault)
	if own, ok := arg["then_err"].(string); ok {
		return format(own, ifField)
	}
	return failed
}

func conditionalAtLeastOneOf(rule check, record, _ *table) string {
	arg, _ := rule.arg.(map[string]any)
	value := valueAt(record, luaText(arg["if_field"]))
	names := fieldNames(arg["then_at_least_one_of"])
	if !rule.matches("if_match", value) || len(filledFields(record, names)) > 0 {
		return ""
	}
	if own, ok := arg["then_err"].(string); ok {
		return format(own, quoteNames(names))
	}
	return atLeastOne + quoteNames(names)
}

// matches reports whether value passes the pattern that the rule has under key. An absent value passes none.
func (c check) matches(key string, value any) bool {
	return !isMissing(value) && c.match[key].validate(value) == nil
}

// valueAt follows a dotted name through records. A number or a boolean on the way raises.
func valueAt(value any, name string) any {
	for {
		head, rest, nested := strings.Cut(name, ".")
		switch v := value.(type) {
		case nil, missing, string:
			return missing{}
		case *table:
			value = v.get(head)
		default:
			raise("attempt to index %s", luaText(value))
		}
		if !nested {
			return value
		}
		name = rest
	}
}

// setAt stores a fault under a dotted name.
func setAt(faults *table, name string, fault any) {
	head, rest, nested := strings.Cut(name, ".")
	if !nested {
		faults.entries[head] = fault
		return
	}
	switch inner := faults.get(head).(type) {
	case missing:
		t := newTable()
		faults.entries[head] = t
		setAt(t, rest, fault)
	case *table:
		setAt(inner, rest, fault)
	default:
		raise("attempt to index %s", luaText(inner))
	}
}

func isFilled(value any) bool {
	switch v := value.(type) {
	case nil, missing:
		return false
	case string:
		return v != ""
	case *table:
		return len(v.entries) > 0
	}
	return true
}

func filledFields(record *table, names []string) []string {
	var out []string
	for _, name := range names {
		if isFilled(valueAt(record, name)) {
			out = append(out, name)
		}
	}
	return out
}
