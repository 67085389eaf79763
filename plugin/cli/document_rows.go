package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

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
	words: "dump", brief: "write policies, costs, tenants and overrides as a file for apply and diff",
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
	return fmt.Sprintf("tier %s, time zone %s", cmp.Or(t.Tier, "(from the request)"), cmp.Or(t.TimeZone, "UTC"))
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

// documentOnly returns an error for flags that a list which is shown as a document cannot have.
func (c *call) documentOnly() error {
	for _, page := range [...]string{"max", "after"} {
		if c.format == formatYAML && c.given(page) {
			return wrong("-o yaml writes a complete document: remove --%s, or use -o json", page)
		}
	}
	return nil
}

// showPolicies shows policies of one namespace as a document, and names the namespaces that it leaves out, unless
// --namespace chose one.
func (c *call) showPolicies(ctx context.Context, rest *answers.Client, p *pages) error {
	chosen, others := p.query.Get("namespace"), map[string]bool{}
	selects := len(p.query) > 1 || len(p.query) == 1 && chosen == ""
	err := c.showDocument(cmp.Or(chosen, "default"), selects, func(yield func(rows.Policy, error) bool) {
		for row, err := range each[rows.Policy](ctx, rest, policiesPath, p) {
			if err == nil && chosen == "" && row.Namespace != "default" {
				others[row.Namespace] = true
			} else if !yield(row, err) {
				return
			}
		}
	})
	if err == nil && len(others) > 0 {
		c.warn("the document covers namespace default only; use --namespace for the others: %s",
			strings.Join(slices.Sorted(maps.Keys(others)), ", "))
	}
	return err
}

// documentPart is how many bytes of a document are collected before they are written.
const documentPart = 64 << 10

// showDocument writes policies while they come as the document that apply reads. A document of some of the policies is
// marked as partial: applied as a whole one, it would delete the others. The list is closed by its last line, so a
// document that is cut short is no YAML, instead of a document of fewer policies.
func (c *call) showDocument(namespace string, partial bool, list iter.Seq2[rows.Policy, error]) error {
	part := []byte("namespace: " + yamlString(namespace) + "\n")
	if partial {
		part = append(part, "partial: true # selected by a flag: apply and diff require --partial\n"...)
	}
	return policySection.show(c, part, list)
}

// appendRow appends a row as a line of a document's list, after the end of the line before it. Fields that are absent
// are left out.
func appendRow[T any](to []byte, fields []schema.Field[T], row *T) []byte {
	separator := "\n  {"
	for i := range fields {
		value, present := fieldValue(fields[i].In(row))
		if fields[i].Unit == "thousandths" && present {
			value = formatFactor(*fields[i].In(row).(*int64))
		}
		if present {
			to = append(to, separator+fields[i].Name+": "+value...)
			separator = ", "
		}
	}
	return append(to, "},"...)
}

// fieldValue returns the value of a field as YAML, and reports whether it is present.
func fieldValue(field any) (value string, present bool) {
	switch field := field.(type) {
	case **int64:
		if *field == nil {
			return "", false
		}
		return strconv.FormatInt(**field, 10), true
	case *int64:
		return strconv.FormatInt(*field, 10), *field != 0
	case *string:
		return yamlString(*field), *field != ""
	case *bool:
		return strconv.FormatBool(*field), *field
	case *time.Time:
		return yamlString(field.UTC().Format(time.RFC3339Nano)), !field.IsZero()
	}
	if r := schema.RecordIn(field); r != nil {
		return r.JSON(), r.JSON() != "" // which is YAML too
	}
	return "", false
}

// overrideForm has what the REST API and files write otherwise than a row has it. Beside an embedded override it takes
// the place of the thousandths in JSON.
type overrideForm struct {
	Factor json.Number `json:"factor,omitempty"` // as people write it
	Org    string      `json:"org,omitempty"`    // the tenant, as the REST API calls it; "" once it is read
}

// read puts the form into an override.
func (f *overrideForm) read(o *schema.Override) (err error) {
	if f.Org != "" {
		o.Tenant, f.Org = f.Org, ""
	}
	if f.Factor != "" {
		o.Factor, err = schema.Thousandths(string(f.Factor))
	}
	return err
}

// shownOverride is an override in JSON and YAML.
type shownOverride struct {
	rows.Override
	overrideForm
}

// UnmarshalJSON reads an override of the REST API or of a file.
func (o *shownOverride) UnmarshalJSON(raw []byte) error {
	type plain shownOverride
	if err := json.Unmarshal(raw, (*plain)(o)); err != nil {
		return err
	}
	return o.read(&o.Override.Override)
}

func newShownOverride(o rows.Override) shownOverride {
	shown := shownOverride{Override: o}
	if factor := o.Factor; factor != 0 {
		shown.Factor = json.Number(formatFactor(factor))
	}
	return shown
}

// shownEnded is an ended override in JSON and YAML.
type shownEnded struct {
	rows.EndedOverride
	overrideForm
}

// UnmarshalJSON reads an ended override of the REST API.
func (o *shownEnded) UnmarshalJSON(raw []byte) error {
	type plain shownEnded
	if err := json.Unmarshal(raw, (*plain)(o)); err != nil {
		return err
	}
	return o.read(&o.EndedOverride.Override.Override)
}

// shownDiff is a diff in JSON and YAML.
type shownDiff struct {
	rows.SetDiff
	Overrides *rows.RowDiff[shownOverride] `json:"overrides,omitempty"`
}

func policyDiff(d rows.Diff) shownDiff { return shownDiff{SetDiff: rows.SetDiff{Diff: d}} }

// Empty reports whether nothing changes.
func (d shownDiff) Empty() bool { return d.SetDiff.Empty() && d.Overrides.Empty() }

// documentRows are the rows of a document as the REST API has them. A nil list is absent.
type documentRows struct {
	Namespace string          `json:"namespace,omitempty"`
	Policies  []rows.Policy   `json:"policies,omitzero"`
	Costs     []rows.Cost     `json:"costs,omitzero"`
	Tenants   []rows.Tenant   `json:"tenants,omitzero"`
	Overrides []shownOverride `json:"overrides,omitzero"`
}
