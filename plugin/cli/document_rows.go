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
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
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
		"policies", schema.FieldsWithout[schema.Policy]("namespace"),
		func(p *rows.Policy) *schema.Policy { return &p.Policy }, policy.Faults,
	}
	costSection = section[rows.Cost, schema.Cost]{
		"costs", schema.FieldsWithout[schema.Cost]("namespace"),
		func(c *rows.Cost) *schema.Cost { return &c.Cost }, policy.CostFaults,
	}
	priceSection = section[rows.Price, schema.DatedPrice]{
		"prices", schema.FieldsWithout[schema.DatedPrice]("namespace"),
		func(p *rows.Price) *schema.DatedPrice { return &p.DatedPrice }, rows.DocumentPriceFaults,
	}
	tenantSection = section[rows.Tenant, schema.Tenant]{
		"tenants", schema.Fields[schema.Tenant](), func(t *rows.Tenant) *schema.Tenant { return &t.Tenant },
		func(t schema.Tenant) []schema.Fault { return rows.Tenant{Tenant: t}.Faults() },
	}
	overrideSection = section[rows.Override, schema.Override]{
		"overrides", schema.FieldsWithout[schema.Override]("author", "source"),
		func(o *rows.Override) *schema.Override { return &o.Override },
		func(o schema.Override) []schema.Fault {
			o.Author = "document"
			return policy.OverrideFaults(o)
		},
	}
)

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

func (s *section[T, F]) text(list []T) string {
	if len(list) == 0 {
		return s.name + ": []\n"
	}
	var b strings.Builder
	b.WriteString(s.name + ": [")
	for _, row := range list {
		b.WriteString(rowText(s.fields, row))
	}
	return b.String() + "\n]\n"
}

// rowText returns a row as a line of a document's list, after the end of the line before it. Fields that are absent are
// left out.
func rowText[F any](fields []schema.Field[F], row any) string {
	var parts []string
	columns := columnsOfRow(row)
	for i := range fields {
		value := columns[fields[i].Name]
		if absent(value) {
			continue
		}
		var text string
		if json.Unmarshal(value, &text) == nil {
			parts = append(parts, fields[i].Name+": "+yamlString(text))
		} else { // JSON, which is YAML too
			parts = append(parts, fields[i].Name+": "+string(value))
		}
	}
	return "\n  {" + strings.Join(parts, ", ") + "},"
}

func (d *document) fieldsText() string {
	if d.whole {
		return "this file are namespace, partial, policies, costs, prices, tenants and overrides"
	}
	return "a policy file are namespace, partial and policies"
}

// sections read the lists of a document by their names.
var sections = map[string]func(*document, *yaml.Node){
	policySection.name:   func(d *document, n *yaml.Node) { d.set.Policies = policySection.read(d, n) },
	costSection.name:     func(d *document, n *yaml.Node) { d.set.Costs = costSection.read(d, n) },
	priceSection.name:    func(d *document, n *yaml.Node) { d.set.Prices = priceSection.read(d, n) },
	tenantSection.name:   func(d *document, n *yaml.Node) { d.set.Tenants = tenantSection.read(d, n) },
	overrideSection.name: func(d *document, n *yaml.Node) { d.set.Overrides = overrideSection.read(d, n) },
}

// section reads the list of a name, and reports whether the document may have it.
func (d *document) section(name string, n *yaml.Node) bool {
	read, known := sections[name]
	if !known || !d.whole && name != policySection.name {
		return false
	}
	d.listed = true
	read(d, n)
	return true
}

var dumpCommand = &command{
	words: "dump", brief: "write policies, costs, prices, tenants and overrides as a file for apply and diff",
	about: `It writes the active policies, the costs and the prices of one namespace (--namespace, or default), all tenants, and the
overrides that have not ended, without the penalties of detectors. All are of one version. Applied to the same database,
the file changes nothing.

  ratelimit dump > limits.yaml`,
	define: func(c *call) action {
		namespace := c.flags.String("namespace", "default", "the `namespace` of the policies")
		c.doorFlag()
		return func(ctx context.Context) error {
			return c.withDoor(ctx, func(ctx context.Context, rest *answers.Client) error {
				var found api.Document
				if err := rest.Get(ctx, documentPath, url.Values{"namespace": {*namespace}}, &found); err != nil {
					return err
				}
				return c.showDocument(*namespace, policySection.text(found.Policies), costSection.text(found.Costs),
					priceSection.text(found.Prices), tenantSection.text(found.Tenants), overrideSection.text(found.Overrides))
			})
		}
	},
}

// showDocument writes the sections of a document. Each list is closed by its last line, so a document that is cut short
// is no YAML, instead of a document of fewer rows.
func (c *call) showDocument(namespace string, sections ...string) error {
	return writeText(c.stdout, "namespace: "+yamlString(namespace)+"\n"+strings.Join(sections, ""), nil)
}

func items[T any](list []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range list {
			if !yield(item, nil) {
				return
			}
		}
	}
}

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

// partialMark marks a document of some of the policies: applied as a whole one, it would delete the others.
const partialMark = "partial: true # selected by a flag: apply and diff require --partial\n"

// showPolicies shows policies of one namespace as a document, and names the namespaces that it leaves out, unless
// --namespace chose one.
func (c *call) showPolicies(ctx context.Context, rest *answers.Client, p *pages) error {
	chosen, others, mark := p.query.Get("namespace"), map[string]bool{}, ""
	if len(p.query) > 1 || len(p.query) == 1 && chosen == "" {
		mark = partialMark
	}
	var policies []rows.Policy
	for row, err := range each[rows.Policy](ctx, rest, policiesPath, p) {
		switch {
		case err != nil:
			return err
		case chosen == "" && row.Namespace != "default":
			others[row.Namespace] = true
		default:
			policies = append(policies, row)
		}
	}
	err := c.showDocument(cmp.Or(chosen, "default"), mark, policySection.text(policies))
	if err == nil && len(others) > 0 {
		c.warn("the document covers namespace default only; use --namespace for the others: %s",
			strings.Join(slices.Sorted(maps.Keys(others)), ", "))
	}
	return err
}

// shownOverride is an override of the REST API, which has its tenant as org. One of the history has ended.
type shownOverride struct {
	rows.EndedOverride
	Org string `json:"org,omitempty"` // "" once it is read
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *shownOverride) UnmarshalJSON(raw []byte) error {
	type plain shownOverride
	err := json.Unmarshal(raw, (*plain)(o))
	o.Tenant, o.Org = cmp.Or(o.Org, o.Tenant), ""
	return err
}
