package cli

import (
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

// overrideDocumentFields are the fields that an override of a document may have. Its author is who applies the
// document, and its source follows from its start.
var overrideDocumentFields = schema.FieldsWithout(schema.OverrideFields(), "author", "source")

// fieldsText returns which fields a document may have.
func (d *document) fieldsText() string {
	if d.whole {
		return "this file are namespace, partial, policies, costs, tenants and overrides"
	}
	return "a policy file are namespace, partial and policies"
}

// section reads the list of costs, tenants or overrides, and reports whether a field is one of them.
func (d *document) section(name string, n *yaml.Node) bool {
	switch name {
	case "costs":
		d.set.Costs = []rows.Cost{}
		d.eachRow(name, n, func(item *yaml.Node, at place) {
			var cost rows.Cost
			if readRow(d, item, at, costDocumentFields, &cost.Cost) {
				d.rowFaults(at, policy.CostFaults(cost.Cost))
			}
			d.set.Costs, d.costPlaces = append(d.set.Costs, cost), append(d.costPlaces, at)
		})
	case "tenants":
		d.set.Tenants = []rows.Tenant{}
		d.eachRow(name, n, func(item *yaml.Node, at place) {
			var t rows.Tenant
			if readRow(d, item, at, schema.TenantFields(), &t.Tenant) {
				d.rowFaults(at, t.Faults())
			}
			d.set.Tenants = append(d.set.Tenants, t)
		})
	case "overrides":
		d.set.Overrides = []rows.Override{}
		d.eachRow(name, n, func(item *yaml.Node, at place) {
			var o rows.Override
			if readRow(d, item, at, overrideDocumentFields, &o.Override) {
				checked := o.Override
				checked.Author = "document"
				d.rowFaults(at, policy.OverrideFaults(checked))
			}
			d.set.Overrides, d.overridePlaces = append(d.set.Overrides, o), append(d.overridePlaces, at)
		})
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
	err := showSection(c, head, "policies", items(list.Policies), appendPolicy)
	if err == nil {
		err = showSection(c, nil, "costs", items(list.Costs), func(to []byte, cost rows.Cost) []byte {
			return appendRow(to, costDocumentFields, &cost.Cost)
		})
	}
	if err == nil {
		err = showSection(c, nil, "tenants", items(list.Tenants), func(to []byte, t rows.Tenant) []byte {
			return appendRow(to, schema.TenantFields(), &t.Tenant)
		})
	}
	if err == nil {
		err = showSection(c, nil, "overrides", items(list.Overrides), func(to []byte, o shownOverride) []byte {
			return appendRow(to, overrideDocumentFields, &o.Override.Override)
		})
	}
	return err
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
	text, err := json.Marshal(shownRow(row))
	if err != nil {
		panic(fmt.Sprintf("cli: a row cannot be encoded: %v", err)) // it holds only texts, numbers, times and booleans
	}
	all, err := rowColumns(text)
	if err != nil {
		panic(fmt.Sprintf("cli: a row cannot be read back: %v", err))
	}
	return all
}
