package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/url"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// section is a list of a document, whose rows T have the fields of F.
type section[T, F any] struct {
	name   string
	fields []schema.Field[F] // that a row of a document may have
	in     func(*T) *F       // the fields in a row
	faults func(F) []schema.Fault
}

// The sections. The namespace is that of the document. The author of an override is who applies the document, and its
// source follows from its start.
var (
	policySection = section[rows.Policy, schema.Policy]{
		"policies", schema.FieldsWithout(schema.PolicyFields(), "namespace"),
		func(p *rows.Policy) *schema.Policy { return &p.Policy }, policy.Faults,
	}
	costSection = section[rows.Cost, schema.Cost]{
		"costs", schema.FieldsWithout(schema.CostFields(), "namespace"),
		func(c *rows.Cost) *schema.Cost { return &c.Cost }, policy.CostFaults,
	}
	tenantSection = section[rows.Tenant, schema.Tenant]{
		"tenants", schema.TenantFields(), func(t *rows.Tenant) *schema.Tenant { return &t.Tenant },
		func(t schema.Tenant) []schema.Fault { return t.Faults() },
	}
	overrideSection = section[shownOverride, schema.Override]{
		"overrides", schema.FieldsWithout(schema.OverrideFields(), "author", "source"),
		func(o *shownOverride) *schema.Override { return &o.Override.Override },
		func(o schema.Override) []schema.Fault {
			o.Author = "document"
			return policy.OverrideFaults(o)
		},
	}
)

// read reads the rows of the section.
func (s *section[T, F]) read(d *document, n *yaml.Node) []T {
	list := []T{}
	if n.Kind != yaml.SequenceNode {
		d.fault(n.Line, s.name, "must be a list")
		return list
	}
	for i, item := range n.Content {
		var row T
		at := place{path: fmt.Sprintf("%s[%d]", s.name, i), line: item.Line, fields: map[string]int{}}
		if readRow(d, aliased(item), at, s.fields, s.in(&row)) {
			d.rowFaults(at, s.faults(*s.in(&row)))
		}
		list, d.places[s.name] = append(list, row), append(d.places[s.name], at)
	}
	return list
}

// show writes the section after a text, while its rows come. A fault cuts it short.
func (s *section[T, F]) show(c *call, part []byte, list iter.Seq2[T, error]) error {
	part = append(part, s.name+": ["...)
	last := "]\n"
	for row, err := range list {
		if err == nil {
			part, last = appendRow(part, s.fields, s.in(&row)), "\n]\n"
		}
		if err == nil && len(part) < documentPart {
			continue
		}
		if _, errWrite := c.stdout.Write(part); err == nil && errWrite != nil {
			err = fmt.Errorf("write the output: %w", errWrite)
		}
		if err != nil {
			return err
		}
		part = part[:0]
	}
	if _, err := c.stdout.Write(append(part, last...)); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// fieldsText returns which fields a document may have.
func (d *document) fieldsText() string {
	if d.whole {
		return "this file are namespace, partial, policies, costs, tenants and overrides"
	}
	return "a policy file are namespace, partial and policies"
}

// section reads the list of a name, and reports whether the document may have it.
func (d *document) section(name string, n *yaml.Node) bool {
	switch {
	case name == policySection.name:
		d.set.Policies = policySection.read(d, n)
	case !d.whole:
		return false
	case name == costSection.name:
		d.set.Costs = costSection.read(d, n)
	case name == tenantSection.name:
		d.set.Tenants = tenantSection.read(d, n)
	case name == overrideSection.name:
		d.set.Overrides = overrideSection.read(d, n)
		for i, o := range d.set.Overrides {
			d.set.Overrides[i] = newShownOverride(o.Override)
		}
	default:
		return false
	}
	return true
}

var dumpCommand = &command{
	words: "dump",
	brief: "write policies, costs, tenants and overrides as a file for apply and diff",
	about: `It writes the active policies and the costs of one namespace (--namespace, or default), all tenants, and the overrides that
have not ended, without the penalties of detectors. All are of one version. Applied to the same database, the file
changes nothing.

  ratelimit dump > limits.yaml`,
	define: func(c *call) action {
		namespace := c.flags.String("namespace", "default", "the `namespace` of the policies")
		c.doorFlag()
		return func(ctx context.Context) error {
			return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
				var found documentRows
				if err := rest.Get(ctx, documentPath, url.Values{"namespace": {*namespace}}, &found); err != nil {
					return err
				}
				return c.showDump(*namespace, found)
			})
		}
	},
}

// showDump writes rows as a document.
func (c *call) showDump(namespace string, list documentRows) error {
	head := []byte("namespace: " + yamlString(namespace) + "\n")
	return cmp.Or(
		policySection.show(c, head, items(list.Policies)), costSection.show(c, nil, items(list.Costs)),
		tenantSection.show(c, nil, items(list.Tenants)), overrideSection.show(c, nil, items(list.Overrides)),
	)
}

// items yields the items of a list.
func items[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range list {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// deletionText returns how many rows a diff deletes; "" for none.
func deletionText(d shownDiff) string {
	var parts []string
	add := func(n int, one, several string) {
		if n > 0 {
			parts = append(parts, plural(n, one, several))
		}
	}
	add(len(d.Delete), "policy", "policies")
	if d.Costs != nil {
		add(len(d.Costs.Delete), "cost", "costs")
	}
	if d.Tenants != nil {
		add(len(d.Tenants.Delete), "tenant", "tenants")
	}
	if d.Overrides != nil {
		add(len(d.Overrides.Delete), "override", "overrides")
	}
	return strings.Join(parts, ", ")
}

// writeRowDiff writes a diff of costs, tenants or overrides, one in each line, and adds its numbers to counts.
func writeRowDiff[T fmt.Stringer](out *page, d *rows.RowDiff[T], counts *[4]int, text func(T) string) {
	if d == nil {
		return
	}
	for _, row := range d.Create {
		out.line("+ %s: %s", row, text(row))
	}
	for _, r := range d.Update {
		out.line("~ %s: %s", r.Before, strings.Join(changedColumns(columnsOfRow(r.Before), columnsOfRow(r.After)), ", "))
	}
	for _, row := range d.Delete {
		out.line("- %s: %s", row, text(row))
	}
	for i, n := range [4]int{len(d.Create), len(d.Update), len(d.Delete), d.Unchanged} {
		counts[i] += n
	}
}

func tenantColumns(t rows.Tenant) string {
	return fmt.Sprintf("tier %s, time zone %s", orDefault(t.Tier, "(from the request)"), orDefault(t.TimeZone, "UTC"))
}

func overrideColumns(o shownOverride) string {
	return strings.TrimSpace(changeText(o.Override.Override) + " " + timesText(o.Override))
}

// columnsOfRow returns the fields of a row by their names.
func columnsOfRow(row any) map[string]json.RawMessage {
	text, err := json.Marshal(row)
	if err != nil {
		panic(fmt.Sprintf("cli: a row cannot be encoded: %v", err)) // it holds only texts, numbers, times and booleans
	}
	all, err := rowColumns(text)
	if err != nil {
		panic(fmt.Sprintf("cli: a row cannot be read back: %v", err))
	}
	return all
}
