package policy

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Rows are the rows of a database, as plain values: nothing in them is checked or compiled. Strings are the names that
// identities are counted by; a name of more than 128 bytes is written as its hash, as metrics and events show it.
type Rows struct {
	Version   int64 // of the database; a snapshot of these rows enforces it
	Tiers     []TierRow
	Tenants   []schema.Tenant
	Policies  []PolicyRow
	Overrides []Override
	Costs     []CostRow
}

// Changes are the rows that are new or different at Version, and the keys of removed rows. A row replaces the
// one of its key, whatever else of it has changed.
type Changes struct {
	Rows
	Removed RowKeys
}

// RowKeys lists rows by table. An unknown key is no fault.
type RowKeys struct {
	Tiers     []string
	Tenants   []string
	Policies  []int64
	Overrides []int64
	Costs     []int64
}

// TierRow declares a tier, with or without policies. Its key is Name.
type TierRow struct {
	Name string `json:"name"`
}

// PolicyRow is a policy that a database holds. Its key is ID.
//
// An empty Mode, FailMode and Accuracy mean the modes of the config under which a request is decided; an empty
// Algorithm is token_bucket.
type PolicyRow struct { //nolint:revive // Row alone would not say of what, beside TierRow and Override
	ID int64 `json:"id"`
	schema.Policy
}

// match returns what the row applies to, and the name of its user, credential or network.
func (p *PolicyRow) match() (match, string) {
	switch {
	case p.User != "":
		return forUser, p.User
	case p.Tenant != "":
		return forTenant, ""
	case p.Credential != "":
		return forCredential, p.Credential
	case p.IP != "":
		return forNetwork, p.IP
	case p.For == schema.ForAnonymous:
		return forAnonymous, ""
	case p.For != "":
		return forAll, ""
	}
	return byTier, ""
}

// The kinds of overrides.
const (
	Ban         = schema.KindBan
	Exempt      = schema.KindExempt
	CustomLimit = schema.KindCustomLimit
	Multiplier  = schema.KindMultiplier
)

// The sources of overrides.
const (
	Commercial = schema.SourceCommercial
	Scheduled  = schema.SourceScheduled
	Detector   = schema.SourceDetector
)

// Override is an override that a database holds. Its key is ID.
//
// An IPv6 address stands for its /64. A custom_limit without a window has the policy's, without a burst the algorithm's
// default; windows have no burst and ignore it. An empty Source is commercial, or scheduled beside StartsAt.
type Override struct {
	ID int64 `json:"id"`
	schema.Override
}

// MarshalJSON writes the start and the end as instants in microseconds; a permanent override has no end.
func (o Override) MarshalJSON() ([]byte, error) {
	type fields Override // without this method
	return json.Marshal(struct {
		fields
		StartsAt  limit.Micros `json:"starts_at,omitempty"`
		ExpiresAt limit.Micros `json:"expires_at,omitempty"`
		Permanent bool         `json:"permanent,omitempty"`
	}{fields(o), micros(o.StartsAt), micros(o.ExpiresAt), false})
}

// ActiveAt reports whether o is in force at an instant: it has begun, and has not ended.
func (o *Override) ActiveAt(now limit.Micros) bool {
	return isActive(micros(o.StartsAt), micros(o.ExpiresAt), now)
}

// micros returns an instant in microseconds, or 0 for none.
func micros(at time.Time) limit.Micros {
	if at.IsZero() {
		return 0
	}
	return limit.Micros(at.UnixMicro())
}

// Fault is what is wrong with a row. The row's last good value, if there is one, stays in force.
type Fault struct {
	Table   string `json:"table"` // tiers, tenants, policies, overrides, costs or candidate_policies
	Key     string `json:"key"`   // of the row: an id in decimal, a name, or the key of a change in words
	Field   string `json:"field"` // as the row's configuration names it
	Problem string `json:"problem"`
}

func (f Fault) Error() string {
	return fmt.Sprintf("%s %s: %s: %s", f.Table, f.Key, f.Field, f.Problem)
}

// rowFaults returns the faults of a row with the table and the key of the row.
func rowFaults(table, key string, faults []schema.Fault) (list []Fault) {
	for _, f := range faults {
		list = append(list, Fault{table, key, f.Path, f.Message})
	}
	return list
}

// The tables of faults.
const (
	inTiers     = "tiers"
	InTenants   = "tenants"
	InPolicies  = "policies"
	inOverrides = "overrides"
	inCosts     = "costs"
	inCandidate = "candidate_policies"
)
