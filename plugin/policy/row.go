package policy

import (
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rows are what a database says, as plain values: nothing in them is checked or compiled. Strings are the names that
// identities are counted by; a name of more than 128 bytes is written as its hash, as metrics and events show it.
type Rows struct {
	Version   int64 // of the database; a snapshot of these rows enforces it
	Tiers     []TierRow
	Tenants   []TenantRow
	Policies  []Row
	Overrides []Override
}

// Changes are the rows that are new or different at Version, and the keys of those that are gone. A row replaces the
// one of its key, whatever else of it has changed.
type Changes struct {
	Rows
	Gone Gone
}

// Gone are the keys of rows that no longer exist. A key that is not known is no fault.
type Gone struct {
	Tiers     []string
	Tenants   []string
	Policies  []int64
	Overrides []int64
}

// TierRow says that a tier exists, with or without policies. Its key is its name.
type TierRow struct {
	Name string `json:"name"`
}

// TenantRow is what is known of one tenant. Its key is ID, the name that requests identify it by.
type TenantRow struct {
	ID       string `json:"id"`
	Tier     string `json:"tier,omitempty"`      // "": the request, else the config, says which
	TimeZone string `json:"time_zone,omitempty"` // of calendar windows; "" for UTC. It is carried along, and not checked here
}

// Row is a policy that a database holds, for all tenants of a tier or for one tenant. Its key is ID.
//
// An empty Mode, FailMode and Accuracy mean those of the config under which a request is decided; an empty Algorithm is
// token_bucket.
type Row struct {
	ID int64 `json:"id"`
	schema.Policy
}

// Match is what the row applies to, least specific first: tier, tenant, tenant+endpoint.
func (p *Row) Match() string {
	switch {
	case p.Tenant == "":
		return "tier"
	case p.Limit.Endpoint == "":
		return "tenant"
	}
	return "tenant+endpoint"
}

// The kinds of overrides.
const (
	Ban         = "ban"
	Exempt      = "exempt"
	CustomLimit = "custom_limit"
	Multiplier  = "multiplier"
)

// The sources of overrides.
const (
	Commercial = "commercial"
	Detector   = "detector"
)

// Override changes what applies to one target: a tenant, a user of a tenant, an endpoint of a tenant, a user at an
// endpoint, a credential or an address (of one tenant if Tenant is given too, else of all). Its key is ID.
type Override struct {
	ID   int64  `json:"id"`
	Kind string `json:"kind"` // ban, exempt, custom_limit or multiplier

	Tenant     string `json:"tenant,omitempty"`
	User       string `json:"user,omitempty"`
	Credential string `json:"credential,omitempty"`
	IP         string `json:"ip,omitempty"`       // an address or a network; an IPv6 address stands for its /64
	Endpoint   string `json:"endpoint,omitempty"` // a pattern; it goes with a tenant, and with a user or none

	Policy     string `json:"policy,omitempty"`      // the policy that it changes; required for custom_limit, "" for all policies of a multiplier's target
	Limit      int64  `json:"limit,omitempty"`       // custom_limit: tokens per window
	WindowSize int64  `json:"window_size,omitempty"` // custom_limit: seconds; 0 = the policy's own
	Burst      int64  `json:"burst,omitempty"`       // custom_limit: tokens; 0 = the algorithm's default. Windows have none and ignore it
	Factor     int64  `json:"factor,omitempty"`      // multiplier: thousandths, 1 to MaxFactor

	Reason string `json:"reason"`
	Author string `json:"author"`

	PublicNote string `json:"public_note,omitempty"` // what the tenant reads about it

	ExpiresAt limit.Micros `json:"expires_at,omitempty"` // it ends at this instant; 0 = it is permanent
	Source    string       `json:"source"`               // commercial or detector; "" is commercial
}

// MaxFactor bounds a multiplier's factor, in thousandths: a thousandfold.
const MaxFactor = 1_000_000

// Fault is what is wrong with a row. The row's last good value, if there is one, stays in force.
type Fault struct {
	Table   string `json:"table"` // tiers, tenants, policies or overrides
	Key     string `json:"key"`   // of the row: an id in decimal, or a name
	Field   string `json:"field"` // as the row's configuration names it
	Problem string `json:"problem"`
}

func (f Fault) Error() string {
	return fmt.Sprintf("%s %s: %s: %s", f.Table, f.Key, f.Field, f.Problem)
}

// The tables of faults.
const (
	inTiers     = "tiers"
	inTenants   = "tenants"
	inPolicies  = "policies"
	inOverrides = "overrides"
)
