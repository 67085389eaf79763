package policytest

import (
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// TenantCase is a tenant with a fault.
type TenantCase struct {
	Name   string
	Field  string // that is at fault
	Tenant schema.Tenant
}

// Message returns what the declaration says of the field.
func (c TenantCase) Message() string { return schema.FieldNamed(schema.TenantFields(), c.Field).Must() }

// FaultyTenants lists tenants that are wrong in one field.
var FaultyTenants = []TenantCase{
	{"a long id", "id", schema.Tenant{ID: strings.Repeat("x", 129)}},
	{"a long tier", "tier", schema.Tenant{ID: "acme", Tier: strings.Repeat("x", 65)}},
	{"a long time zone", "time_zone", schema.Tenant{ID: "acme", TimeZone: strings.Repeat("x", 65)}},
	{"an unknown time zone", "time_zone", schema.Tenant{ID: "acme", TimeZone: "Europe/Atlantis"}},
	{"the time zone of one machine", "time_zone", schema.Tenant{ID: "acme", TimeZone: "Local"}},
}
