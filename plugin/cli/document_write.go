package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
