package policy

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/docpath"
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
	Prices    []PriceRow
}

// Changes are the rows that are new or different at Version, and the keys of removed rows. A row replaces the
// one of its key, whatever else of it has changed. A key that has a row too counts as different.
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
	Prices    []int64
}

// TierRow declares a tier, with or without policies. Its key is Name. The other fields are words for tenants.
type TierRow struct {
	Name      string `json:"name"`
	Title     string `json:"title,omitempty"`
	PriceText string `json:"price_text,omitempty"`
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

// Override is an override that a database holds. Its key is ID.
//
// An IPv6 address stands for its /64. A custom_limit without a window has the policy's, without a burst the algorithm's
// default; windows have no burst and ignore it, as limits by the calendar and of concurrency ignore a window. An empty
// Source is commercial, or scheduled beside StartsAt.
type Override struct {
	ID int64 `json:"id"`
	schema.Override
}

// ActiveAt reports whether o is in force at an instant: it has begun, and has not ended.
func (o *Override) ActiveAt(now limit.Micros) bool {
	return isActive(micros(o.StartsAt), micros(o.ExpiresAt), now)
}

func micros(at time.Time) limit.Micros {
	if at.IsZero() {
		return 0
	}
	return limit.Micros(at.UnixMicro())
}

// Fault is what is wrong with a row. The row's last good value, if there is one, stays in force.
type Fault struct {
	Table   string `json:"table"` // tiers, tenants, policies, overrides, costs, prices or candidate_policies
	Key     string `json:"key"`   // of the row: an id in decimal, a name, or the key of a change in words
	Field   string `json:"field"` // as the row's configuration names it
	Problem string `json:"problem"`
}

func (f Fault) Error() string {
	return fmt.Sprintf("%s %s: %s: %s", f.Table, f.Key, f.Field, f.Problem)
}

// The tables of faults.
const (
	inTiers     = "tiers"
	InTenants   = "tenants"
	InPolicies  = "policies"
	inOverrides = "overrides"
	inCosts     = "costs"
	inPrices    = "prices"
	inCandidate = "candidate_policies"
)

// Faults returns everything that is wrong with a policy by itself, in the order of its fields: what its declaration
// says, arithmetic that would not be exact, and a pattern that matches nothing. Every way to write a policy, and every
// node that reads one, reports these. NewSnapshot finds endpoints that are ambiguous with others.
func Faults(p schema.Policy) []schema.Fault { return p.Faults(compiles) }

// compiles returns why a limit cannot be counted, as schema.Faults.
func compiles(p schema.Policy) error {
	_, err := compileLimit(p.Limit)
	faults := AppendFaults(nil, "", err)
	faults = AppendFaults(faults, "endpoint", checkPattern(p.Endpoint))
	return AppendFaults(faults, "ip", checkAddress(policyField("ip").Must(), p.IP)).OrNil()
}

// OverrideFaults returns everything that is wrong with an override by itself, as Faults does for a policy.
func OverrideFaults(o schema.Override) []schema.Fault { return o.Faults(overrideCompiles) }

// overrideCompiles returns why an override cannot be applied, as schema.Faults.
func overrideCompiles(o schema.Override) error {
	must := schema.FieldNamed[schema.Override]("ip").Must()
	faults := AppendFaults(nil, "ip", checkAddress(must, o.IP))
	faults = AppendFaults(faults, "endpoint", checkPattern(o.Endpoint))
	switch o.Kind {
	case schema.KindExempt:
		faults = AppendFaults(faults, "endpoint", CheckExemptable(o.Endpoint))
	case schema.KindCustomLimit:
		_, err := limit.New(customSpec(o))
		faults = AppendFaults(faults, "", err)
	}
	return faults.OrNil()
}

func checkAddress(must, text string) error {
	if isAddress(text) {
		return nil
	}
	return fmt.Errorf("%s, got %q", must, docpath.Shorten(text))
}

// isAddress reports whether text is what the database takes as an address: one address, a network, or nothing.
func isAddress(text string) bool {
	if text == "" {
		return true
	}
	_, err := ParseNetwork(text)
	return err == nil
}

// customSpec returns the limit of a custom_limit, where the policy is a token_bucket.
func customSpec(o schema.Override) limit.Spec {
	spec := limit.Spec{
		Algorithm: limit.TokenBucket, Quantity: o.Limit, Window: windowMicros(o.WindowSize), Burst: o.Burst,
	}
	if o.WindowSize == 0 {
		spec.Window = limit.Second // the policy's own takes its place
	}
	return spec
}

func checkPattern(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	_, err := ParsePattern(endpoint)
	return err
}

// AppendFaults appends an error about a path, unless it is nil. A joined error becomes one fault each, and an error
// about a field gets the field's path.
func AppendFaults(faults schema.Faults, path string, err error) schema.Faults {
	if err == nil {
		return faults
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			faults = AppendFaults(faults, path, e)
		}
		return faults
	}
	fault := schema.Fault{Path: path, Message: err.Error()}
	if field := new(limit.FieldError); errors.As(err, &field) {
		fault = schema.Fault{Path: docpath.Join(path, field.Field), Message: field.Problem}
	}
	return append(faults, fault)
}

// CostRow is what requests to an endpoint cost, as a database holds it. Its key is ID.
type CostRow struct {
	ID int64 `json:"id"`
	schema.Cost
}

// CostFaults returns everything that is wrong with a cost by itself, as Faults does for a policy.
func CostFaults(c schema.Cost) []schema.Fault {
	return c.Faults(func(c schema.Cost) error {
		return AppendFaults(nil, "endpoint", checkPattern(c.Endpoint)).OrNil()
	})
}

// PriceRow is what calls of a model cost from an instant on, as a database holds it. Its key is ID.
type PriceRow struct {
	ID int64 `json:"id"`
	schema.DatedPrice
}

// Costs returns all costs of endpoints, ordered by id.
func (s *Snapshot) Costs() []CostRow {
	rows := make([]CostRow, 0, s.costs.rows)
	for r := range s.costs.all {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b CostRow) int { return cmp.Compare(a.ID, b.ID) })
	return rows
}

// Prices returns all prices of models, in no particular order.
func (s *Snapshot) Prices() iter.Seq[*PriceRow] { return s.prices.all }

func (r *CostRow) rowID() int64        { return r.ID }
func (r *CostRow) pattern() string     { return r.Endpoint }
func (r *CostRow) link(*builder, bool) {} // each build lists the costs of a namespace anew

func (r *PriceRow) rowID() int64        { return r.ID }
func (r *PriceRow) pattern() string     { return "" }
func (r *PriceRow) link(*builder, bool) {} // each build lists the prices of a namespace anew

func (b *builder) putCost(in CostRow) {
	in.Namespace = b.intern(cmp.Or(in.Namespace, defaultNamespace))
	putPlain(b, inCosts, &b.snapshot.costs, &b.previous.costs, &in, CostFaults(in.Cost))
}

func (b *builder) putPrice(in PriceRow) {
	in.Namespace = b.intern(cmp.Or(in.Namespace, defaultNamespace))
	putPlain(b, inPrices, &b.snapshot.prices, &b.previous.prices, &in, in.Faults())
}

// putPlain puts a row as it was given, unless it has faults.
func putPlain[R row](b *builder, table string, rows, previous *index[R], in R, faults []schema.Fault) {
	id := in.rowID()
	if len(faults) > 0 {
		in = *new(R)
	}
	put(b, table, rows, previous, id, in, func() []schema.Fault { return faults })
}
