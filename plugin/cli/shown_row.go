package cli

import (
	"encoding/json"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// decimalFactor is the factor of an override as people write it. Beside an embedded override it takes the place of the
// thousandths in JSON.
type decimalFactor struct {
	Factor json.Number `json:"factor,omitempty"`
}

// shownOverride is an override in JSON and YAML.
type shownOverride struct {
	rows.Override
	decimalFactor
}

// UnmarshalJSON reads an override with a decimal factor.
func (o *shownOverride) UnmarshalJSON(raw []byte) error {
	type plain shownOverride
	err := json.Unmarshal(raw, (*plain)(o))
	if err == nil && o.Factor != "" {
		o.Override.Factor, err = schema.Thousandths(string(o.Factor))
	}
	return err
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

// rows returns the rows of a file.
func (d *document) rows() documentRows {
	list := documentRows{Namespace: d.set.Namespace, Costs: d.set.Costs, Tenants: d.set.Tenants}
	if !d.set.KeepPolicies {
		list.Policies = append([]rows.Policy{}, d.set.Policies...)
	}
	if d.set.Overrides != nil {
		list.Overrides = []shownOverride{}
	}
	for _, o := range d.set.Overrides {
		list.Overrides = append(list.Overrides, newShownOverride(o))
	}
	return list
}

func newDecimalFactor(thousandths int64) decimalFactor {
	if thousandths == 0 {
		return decimalFactor{}
	}
	return decimalFactor{json.Number(formatFactor(thousandths))}
}

func newShownOverride(o rows.Override) shownOverride {
	return shownOverride{o, newDecimalFactor(o.Factor)}
}

// shownRow returns a row as JSON and YAML show it.
func shownRow(row any) any {
	switch r := row.(type) {
	case rows.Override:
		return newShownOverride(r)
	case rows.EndedOverride:
		return struct {
			rows.EndedOverride
			decimalFactor
		}{r, newDecimalFactor(r.Factor)}
	}
	return row
}
