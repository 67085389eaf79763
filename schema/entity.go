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

// lookup follows a dotted name through records.
func lookup(n *node, name string) *node {
	for part := range strings.SplitSeq(name, ".") {
		if n == nil {
			return nil
		}
		n = n.get(part)
	}
	return n
}

// Cost is what requests to an endpoint cost, as a row of the database has it, the REST API, files of rows and the
// ratelimit command: an entry of the plugin config's cost table that changes at run time. Each field is declared here
// alone, as those of Policy are. CostFields lists them.
type Cost struct {
	// The namespace of the plugin configs that the cost applies to. Default: default.
	Namespace string `json:"namespace,omitempty" kong:"as=Policy.namespace" default:"default"`

	// The requests that have the cost, as "METHOD /pattern": {param} and a trailing * are wildcards; * as the method
	// matches any method. Required.
	Endpoint string `json:"endpoint" kong:"as=Limit.endpoint" example:"POST /exports"`

	// What a request costs, in tokens, where its policy has no cost of its own and no header of the request has one; 0 is
	// free. Required.
	Cost *int64 `json:"cost,omitempty" kong:"as=Limit.cost" unit:"tokens" example:"50"`
}

// Faults returns everything that is wrong with c by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (c Cost) Faults(checks ...func(Cost) error) []Fault {
	return costModel().faults(c, append([]func(Cost) error{Cost.complete}, checks...)...)
}

// complete returns an error, as Faults, unless endpoint and cost are given: an absent cost must not be taken as free.
func (c Cost) complete() error {
	var faults findings
	if c.Endpoint == "" {
		faults.add("endpoint", "is required, such as POST /exports")
	}
	if c.Cost == nil {
		faults.add("cost", "is required; 0 makes the requests free")
	}
	return asError(faults)
}

// CostFields returns the fields of a Cost in the order of their declaration. The caller must not change them.
func CostFields() []Field[Cost] { return costModel().fields }

// Tenant holds the settings of one tenant besides its policies and overrides, as a row of the database has it, the REST
// API and the ratelimit command. Each field is declared here alone, as those of Policy are. TenantFields lists them.
//
// An empty text means absent.
type Tenant struct {
	// The tenant, as requests identify it, in at most 128 bytes: a longer name is counted by its hash. Required.
	ID string `json:"id" kong:"required,len_max=128" kong_err:"must have 1 to 128 bytes: write the hash by which a longer name is counted"`

	// The tier of the tenant. Default: the tier that its requests claim, else the plugin config's default.
	Tier string `json:"tier,omitempty" kong:"as=Policy.tier"`

	// The IANA name of its time zone. Default: UTC.
	TimeZone string `json:"time_zone,omitempty" kong:"len_max=64" kong_err:"must be the IANA name of a time zone, such as Europe/Berlin, or left out for UTC" unit:"name"`
}

// Faults returns everything that is wrong with t by itself, in the order of its fields; the paths are their names. The
// checks find what needs more than the schema, as those of Parse do.
func (t Tenant) Faults(checks ...func(Tenant) error) []Fault {
	return tenantModel().faults(t, checks...)
}

// TenantFields returns the fields of a Tenant in the order of their declaration. The caller must not change them.
func TenantFields() []Field[Tenant] { return tenantModel().fields }
