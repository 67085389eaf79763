package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// checker walks a document along the Kong schema. It reports faults, removes nulls and fills in defaults, as Kong does.
// It also removes values of a wrong type, so that the document can be decoded into a Config.
type checker struct {
	faults []Fault
	faulty map[string]bool // the paths of faults
	nulls  bool            // nulls for which Kong denies a config are faults, else they count as absent
}

func (c *checker) fault(path, format string, args ...any) {
	c.faults = append(c.faults, Fault{path, fmt.Sprintf(format, args...)})
	c.faulty[path] = true
}

// value checks n and reports whether its type is right. Of the violated constraints it reports the first.
func (c *checker) value(f *field, n *node, path string) bool {
	if !c.rightType(f, n, path) {
		return false
	}
	before := len(c.faults)
	switch f.Type {
	case "record":
		c.record(f, n, path)
		return true
	case "array", "set":
		c.items(f.Elements, n, path)
	case "map":
		c.entries(f, n, path)
	}
	if len(c.faults) == before {
		if message := f.violation(n); message != "" {
			c.fault(path, "%s", message)
		}
	}
	return true
}

var typeWords = map[string]string{
	"string": "a string", "integer": "an integer", "boolean": "true or false",
	"array": "an array", "set": "an array", "map": "an object", "record": "an object",
}

var typeKinds = map[string]kind{
	"string": kindString, "integer": kindNumber, "boolean": kindBool,
	"array": kindArray, "set": kindArray, "map": kindObject, "record": kindObject,
}

func (c *checker) rightType(f *field, n *node, path string) bool {
	want := typeKinds[f.Type]
	isTable := func(k kind) bool { return k == kindArray || k == kindObject }
	if isTable(want) && isTable(n.kind) && len(n.items)+len(n.members) == 0 {
		n.kind = want // Lua has one empty table, and its cjson prints that as {}
	}
	if n.kind != want {
		c.fault(path, "must be %s, got %s", typeWords[f.Type], f.show(n))
		return false
	}
	if f.Type != "integer" {
		return true
	}
	value, ok := exactInteger(n.text)
	if !ok {
		c.fault(path, "must be an integer, got %s", f.show(n))
		return false
	}
	n.text = fmt.Sprint(value)
	return true
}

// show describes n for a message, without the value of a secret.
func (f *field) show(n *node) string {
	if f.Encrypted {
		return "something else"
	}
	return show(n)
}

func (c *checker) items(elements *field, n *node, path string) {
	for i, item := range n.items {
		at := docpath.Item(path, i)
		if item.kind == kindNull {
			c.fault(at, "must not be null")
		} else if c.value(elements, item, at) {
			continue
		}
		n.items[i] = &node{kind: kindString} // keeps the indexes of the items after it
		if elements.Type == "record" {
			n.items[i].kind = kindObject
		}
	}
}

func (c *checker) entries(f *field, n *node, path string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool {
		at := docpath.Member(path, m.key)
		if m.value.kind == kindNull {
			if c.nulls {
				c.fault(at, "must not be null")
			}
			return true
		}
		key := &node{kind: kindString, text: m.key}
		if message := f.Keys.violation(key); message != "" {
			c.fault(at, "the key %s", message)
			return true
		}
		return !c.value(f.Values, m.value, at)
	})
}

// record checks the members of n in their order, then fills in defaults, then runs the entity checks.
func (c *checker) record(f *field, n *node, path string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool {
		if m.value.kind != kindNull {
			return !c.member(f, m, path)
		}
		if c.nulls {
			c.null(f, m.key, path)
		}
		return true
	})
	for _, inner := range f.Fields {
		c.missing(inner, n, path)
	}
	for _, check := range f.EntityChecks {
		c.entity(check, n, path)
	}
}

// null reports a member that is null and for which Kong denies the config: one that is required or unknown. Those
// without a default are reported as missing.
func (c *checker) null(f *field, key, path string) {
	at, inner := docpath.Member(path, key), f.field(key)
	switch {
	case inner == nil && !addedByKong(key, path == ""):
		c.fault(at, "%s", f.unknown(key))
	case inner != nil && inner.Required && (inner.defaultValue != nil || inner.Type == "record"):
		c.faults = append(c.faults, Fault{at, "must not be null: leave it out for its default"})
	}
}

// member checks one member of a record and reports whether it stays.
func (c *checker) member(f *field, m member, path string) bool {
	if inner := f.field(m.key); inner != nil {
		isRight := c.value(inner, m.value, docpath.Member(path, m.key))
		return isRight && (inner.Type != "map" || len(m.value.members) > 0)
	}
	if !addedByKong(m.key, path == "") {
		c.fault(docpath.Member(path, m.key), "%s", f.unknown(m.key))
	}
	return false
}

// unknown returns the message for a key that the record does not have.
func (f *field) unknown(key string) string { return "unknown field" + hint(key, f.names) }

// addedByKong reports whether Kong itself adds a key: resolved vault references in any record, and the identity and
// scope of the instance at the top.
func addedByKong(key string, top bool) bool {
	switch key {
	case "$refs":
		return true
	case "route_id", "service_id", "consumer_id", "consumer_group_id", "plugin_instance_name":
		return top
	}
	return top && strings.HasPrefix(key, "__")
}

// missing fills in the default of a field that the record n does not have, or reports it as missing.
func (c *checker) missing(f namedField, n *node, path string) {
	if n.get(f.name) != nil || c.faulty[docpath.Member(path, f.name)] {
		return
	}
	switch {
	case f.defaultValue != nil:
		n.members = append(n.members, member{f.name, f.defaultValue})
	case f.Required && f.Type == "record":
		filled := &node{kind: kindObject}
		c.record(f.field, filled, docpath.Member(path, f.name))
		n.members = append(n.members, member{f.name, filled})
	case f.Required:
		c.fault(docpath.Member(path, f.name), "is required")
	}
}

// violation returns the message of the first constraint of f that n violates, or "". The type of n must be right.
func (f *field) violation(n *node) string {
	switch n.kind {
	case kindNumber:
		return f.numberViolation(n)
	case kindString:
		return f.stringViolation(n)
	case kindArray:
		return f.lengthViolation(len(n.items), "element")
	}
	return ""
}

func (f *field) numberViolation(n *node) string {
	value, ok := exactInteger(n.text)
	if len(f.Between) != 2 || !ok {
		return ""
	}
	switch low, high := f.Between[0], f.Between[1]; {
	case value >= low && value <= high:
		return ""
	case f.Err != "":
		return f.Err
	case value > high:
		return fmt.Sprintf("must be <= %d, got %d", high, value)
	case low == 1:
		return fmt.Sprintf("must be > 0, got %d", value)
	default:
		return fmt.Sprintf("must be >= %d, got %d", low, value)
	}
}

func (f *field) stringViolation(n *node) string {
	if f.Referenceable && strings.HasPrefix(n.text, "{vault://") && strings.HasSuffix(n.text, "}") {
		return "" // Kong puts the value here before the plugin sees it
	}
	if n.text == "" && f.LenMin == nil {
		return "must not be empty"
	}
	if len(f.OneOf) > 0 && !slices.Contains(f.OneOf, n.text) {
		if f.Err != "" {
			return fmt.Sprintf("%s, got %s", f.Err, f.show(n))
		}
		return fmt.Sprintf("must be one of %s, got %s", strings.Join(f.OneOf, ", "), f.show(n))
	}
	message := f.lengthViolation(len(n.text), "byte")
	matches := func(pattern func() *regexp.Regexp) bool { return pattern().MatchString(n.text) }
	switch {
	case message == "" && (len(f.patterns) == 0 || slices.ContainsFunc(f.patterns, matches)):
		return ""
	case f.Err != "":
		return fmt.Sprintf("%s, got %s", f.Err, f.show(n))
	case message != "":
		return message
	case f.MatchAny != nil:
		return fmt.Sprintf("%s, got %s", f.MatchAny.Err, f.show(n))
	}
	return fmt.Sprintf("must match %s, got %s", f.Match, f.show(n))
}

func (f *field) lengthViolation(length int, unit string) string {
	plural := func(n int) string {
		if n == 1 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		return fmt.Sprintf("%d %ss", n, unit)
	}
	switch {
	case f.LenMin != nil && length < *f.LenMin:
		return fmt.Sprintf("must have at least %s, has %d", plural(*f.LenMin), length)
	case f.LenMax != nil && length > *f.LenMax:
		return fmt.Sprintf("must have at most %s, has %d", plural(*f.LenMax), length)
	}
	return ""
}

// equals reports whether n is the scalar of the JSON text want.
func equals(n *node, want json.RawMessage) bool {
	switch n.kind {
	case kindString:
		return string(appendJSONString(nil, n.text)) == string(want)
	case kindNumber:
		given, ok := exactInteger(n.text)
		wanted, isNumber := exactInteger(string(want))
		return ok && isNumber && given == wanted
	}
	return n.text == string(want)
}
