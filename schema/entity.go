package schema

import (
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// entity runs one entity check on the record n, with Kong's meaning of each check.
func (c *checker) entity(check entityCheck, n *node, path string) {
	given := func(name string) bool { return nonEmpty(lookup(n, name)) }
	var present []string
	for _, name := range slices.Concat(check.OnlyOneOf, check.MutuallyRequired, check.MutuallyExclusive) {
		if given(name) {
			present = append(present, name)
		}
	}
	faulty := func(name string) bool { return c.faulty[docpath.Member(path, name)] }
	lacks := func(names []string) bool { // unless one of them was given and is faulty by itself
		return !slices.ContainsFunc(names, given) && !slices.ContainsFunc(names, faulty)
	}
	switch {
	case check.AtLeastOneOf != nil && lacks(check.AtLeastOneOf):
		c.fault(path, "must name at least one of %s", strings.Join(check.AtLeastOneOf, ", "))
	case check.OnlyOneOf != nil && lacks(check.OnlyOneOf):
		c.fault(docpath.Member(path, check.OnlyOneOf[0]), "is required, unless %s is given",
			strings.Join(check.OnlyOneOf[1:], " or "))
	case check.OnlyOneOf != nil:
		for _, name := range present[min(1, len(present)):] {
			c.fault(docpath.Member(path, name), "cannot be given together with %s: give one of %s", present[0],
				strings.Join(check.OnlyOneOf, ", "))
		}
	case check.MutuallyRequired != nil:
		for _, name := range check.MutuallyRequired {
			if len(present) > 0 && !given(name) {
				c.fault(docpath.Member(path, name), "is required together with %s", strings.Join(present, ", "))
			}
		}
	case check.MutuallyExclusive != nil:
		for _, name := range present[min(1, len(present)):] {
			c.fault(docpath.Member(path, name), "cannot be given together with %s", present[0])
		}
	case check.Conditional != nil:
		c.conditional(check.Conditional, n, path)
	case check.ConditionalAtLeastOneOf != nil:
		rule := check.ConditionalAtLeastOneOf
		if rule.IfMatch.accepts(lookup(n, rule.IfField)) && !slices.ContainsFunc(rule.ThenAtLeastOneOf, given) {
			c.fault(docpath.Join(path, rule.IfField), "%s", rule.ThenErr)
		}
	}
}

func (c *checker) conditional(rule *conditional, n *node, path string) {
	then := lookup(n, rule.ThenField)
	at := docpath.Join(path, rule.ThenField)
	if then == nil || c.faulty[at] || c.faulty[docpath.Join(path, rule.IfField)] {
		return // what is missing or faulty by itself has been reported
	}
	if rule.IfMatch.accepts(lookup(n, rule.IfField)) && !rule.ThenMatch.accepts(then) {
		c.fault(at, "%s, got %s", rule.ThenErr, show(then))
	}
}

// accepts reports whether n meets the constraints of f except its type. An absent value does unless it is required.
func (f *field) accepts(n *node) bool {
	if n == nil {
		return !f.Required
	}
	if f.Eq != nil && !equals(n, f.Eq) {
		return false
	}
	return n.kind == kindBool || f.violation(n) == ""
}

// nonEmpty reports whether Kong counts a field as present: not absent, not "", not an empty array or object.
func nonEmpty(n *node) bool {
	switch {
	case n == nil:
		return false
	case n.kind == kindString:
		return n.text != ""
	case n.kind == kindArray:
		return len(n.items) > 0
	case n.kind == kindObject:
		return len(n.members) > 0
	}
	return true
}

func lookup(n *node, name string) *node {
	for part := range strings.SplitSeq(name, ".") {
		if n == nil {
			return nil
		}
		n = n.get(part)
	}
	return n
}
