package cli

import (
	"encoding/json"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

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
