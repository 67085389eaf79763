package cli

import (
	"encoding/json"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
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

// shownDiff is a diff in JSON and YAML.
type shownDiff struct {
	rows.SetDiff
	Overrides *rows.RowDiff[shownOverride] `json:"overrides,omitempty"`
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

func newShownDiff(d rows.SetDiff) shownDiff {
	shown := shownDiff{SetDiff: d}
	if d.Overrides == nil {
		return shown
	}
	shown.Overrides = &rows.RowDiff[shownOverride]{Unchanged: d.Overrides.Unchanged, Ended: d.Overrides.Ended}
	for _, o := range d.Overrides.Create {
		shown.Overrides.Create = append(shown.Overrides.Create, newShownOverride(o))
	}
	for _, r := range d.Overrides.Update {
		shown.Overrides.Update = append(shown.Overrides.Update,
			rows.RewriteRow[shownOverride]{Before: newShownOverride(r.Before), After: newShownOverride(r.After)})
	}
	for _, o := range d.Overrides.Delete {
		shown.Overrides.Delete = append(shown.Overrides.Delete, newShownOverride(o))
	}
	return shown
}
