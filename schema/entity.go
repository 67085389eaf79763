package schema

import (
	"slices"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
)

// entity runs one entity check on the record n, with Kong's meaning of each check.
func (c *checker) entity(check entityCheck, n *node, path string) {
	switch {
	case check.AtLeastOneOf != nil:
		c.atLeastOneOf(check.AtLeastOneOf, n, path)
	case check.MutuallyRequired != nil:
		c.mutuallyRequired(check.MutuallyRequired, n, path)
	case check.MutuallyExclusive != nil:
		c.mutuallyExclusive(check.MutuallyExclusive, n, path)
	case check.Conditional != nil:
		c.conditional(check.Conditional, n, path)
	case check.ConditionalAtLeastOneOf != nil:
		rule := check.ConditionalAtLeastOneOf
		given := func(name string) bool { return nonEmpty(lookup(n, name)) }
		if rule.IfMatch.accepts(lookup(n, rule.IfField)) && !slices.ContainsFunc(rule.ThenAtLeastOneOf, given) {
			c.fault(docpath.Join(path, rule.IfField), "%s", rule.ThenErr)
		}
	}
}

// atLeastOneOf reports a record without any of the named fields, unless one of them was given and is faulty by itself.
func (c *checker) atLeastOneOf(names []string, n *node, path string) {
	present, _ := partition(names, n)
	faulty := func(name string) bool { return c.faulty[docpath.Member(path, name)] }
	if len(present) == 0 && !slices.ContainsFunc(names, faulty) {
		c.fault(path, "must name at least one of %s", strings.Join(names, ", "))
	}
}

func (c *checker) mutuallyRequired(names []string, n *node, path string) {
	present, absent := partition(names, n)
	if len(present) == 0 {
		return
	}
	for _, name := range absent {
		c.fault(docpath.Member(path, name), "is required together with %s", strings.Join(present, ", "))
	}
}

func (c *checker) mutuallyExclusive(names []string, n *node, path string) {
	present, _ := partition(names, n)
	if len(present) < 2 {
		return
	}
	for _, name := range present[1:] {
		c.fault(docpath.Member(path, name), "cannot be given together with %s", present[0])
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

func partition(names []string, n *node) (present, absent []string) {
	for _, name := range names {
		if nonEmpty(lookup(n, name)) {
			present = append(present, name)
		} else {
			absent = append(absent, name)
		}
	}
	return present, absent
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
