package policytest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Override returns the row of an override. It is permanent unless it has an end; its reason and author are these.
func Override(id int64, o schema.Override) policy.Override {
	o.Reason, o.Author, o.Permanent = "ticket 7", "ann", o.ExpiresAt.IsZero()
	return policy.Override{ID: id, Override: o}
}

// OverrideCase is an override with a fault.
type OverrideCase struct {
	Field    string         // that is at fault
	All      bool           // it is of all tenants; otherwise it is of tenant acme
	Override map[string]any // by the names of its fields

	Row     schema.Override // the same
	Message string          // of its declaration
}

// FaultyOverrides returns overrides that are wrong in one field; file is the path of
// schema/testdata/faulty_overrides.json, which lists them.
func FaultyOverrides(t *testing.T, file string) []OverrideCase {
	t.Helper()
	cases := readCases[OverrideCase](t, file)
	for i := range cases {
		c := &cases[i]
		c.Override = changed(map[string]any{
			"kind": "multiplier", "factor": 0.5, "reason": "a test", "expires_at": "2100-01-01T00:00:00Z",
		}, c.Override)
		raw, err := json.Marshal(c.Override)
		if err == nil {
			err = json.Unmarshal(raw, &c.Row)
		}
		require.NoError(t, err)
		if c.Row.Author = "ann"; !c.All {
			c.Row.Tenant = "acme"
		}
		c.Message = c.declared(t)
	}
	return cases
}

// IsAbsent reports whether the faulty value is 0 or empty, which a row of Go has as absent.
func (c OverrideCase) IsAbsent() bool {
	return c.Override[c.Field] == json.Number("0") || c.Override[c.Field] == ""
}

func (c OverrideCase) declared(t *testing.T) string {
	t.Helper()
	switch c.Override[c.Field] {
	case "":
		return schema.FieldNamed[schema.Override](c.Field).Problem("")
	case json.Number("0"):
		return schema.FieldNamed[schema.Override](c.Field).Problem(int64(0))
	}
	message := messageAt(policy.OverrideFaults(c.Row), c.Field)
	require.NotEmpty(t, message, "%v has no fault at %s", c.Override, c.Field)
	return message
}
