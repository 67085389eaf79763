package rows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// Set holds the desired active policies of one namespace, and perhaps its desired costs and prices, and the desired
// tenants and overrides, which are of all namespaces.
type Set struct {
	Namespace string     // "": default
	Policies  []Policy   // without a namespace they are in that of the set; another one is an error
	Costs     []Cost     // of the namespace; nil: costs stay as they are
	Prices    []Price    // of the namespace; nil: prices stay as they are
	Tenants   []Tenant   // nil: tenants stay as they are
	Overrides []Override // those of people that have not ended; nil: overrides stay as they are
	Partial   bool       // rows outside the set stay

	// KeepPolicies leaves the policies as they are: the set has none.
	KeepPolicies bool

	// Config is the plugin's config, for the review of the changes; nil: unknown.
	Config *resolve.Plan
	// IsConsumer reports whether the config's file has a consumer of a name; nil: none is known.
	IsConsumer func(name string) bool
	// Accept runs before Apply writes, with the changes and their review. If it returns an error, Apply writes nothing
	// and returns a DeclinedError. nil accepts everything.
	Accept func(SetDiff, Review) error
}

// SetDiff holds the changes from the current rows to those of a Set.
type SetDiff struct {
	Diff

	Costs     *RowDiff[Cost]     `json:"costs,omitempty"     doc:"Absent: the document has no costs."`
	Prices    *RowDiff[Price]    `json:"prices,omitempty"    doc:"Absent: the document has no prices."`
	Tenants   *RowDiff[Tenant]   `json:"tenants,omitempty"   doc:"Absent: the document has no tenants."`
	Overrides *RowDiff[Override] `json:"overrides,omitempty" doc:"Absent: the document has no overrides."`
}

// Empty reports whether nothing changes.
func (d SetDiff) Empty() bool {
	return d.Diff.Empty() && d.Costs.Empty() && d.Prices.Empty() && d.Tenants.Empty() && d.Overrides.Empty()
}

// Deletes returns how many rows are deleted.
func (d SetDiff) Deletes() int {
	return len(d.Delete) + d.Costs.deletes() + d.Prices.deletes() + d.Tenants.deletes() + d.Overrides.deletes()
}

// Diff returns what Apply would do, without doing it.
func (s *DB) Diff(ctx context.Context, set Set) (SetDiff, error) {
	d, _, err := set.diff(ctx, s.pool, "")
	return d, fail("compare policies", err)
}

// Apply changes the policies, costs and prices of a namespace, and tenants and overrides, to those of a set, in one
// transaction and one version. It returns what it did, and the version in which the set is in force. Applying a set
// again changes nothing.
func (s *DB) Apply(ctx context.Context, c Change, set Set) (SetDiff, int64, error) {
	return write(ctx, s, "apply policies", c, func(tx pgx.Tx) (SetDiff, error) {
		d, after, err := set.diff(ctx, tx, c.Actor)
		if err == nil && set.Accept != nil {
			err = set.accept(ctx, tx, d, after)
		}
		if err == nil {
			err = d.write(ctx, tx)
		}
		return d, err
	})
}

// accept reviews a diff and returns why it is declined.
func (set Set) accept(ctx context.Context, q querier, d SetDiff, after []Policy) error {
	review, err := reviewAmong(ctx, q, set.Config, d.Diff.written(), after, d.Create, d.Costs)
	if err == nil {
		err = review.addRowWarnings(ctx, q, set, d, after)
	}
	if err != nil {
		return err
	}
	if why := set.Accept(d, review); why != nil {
		return &DeclinedError{why}
	}
	return nil
}

// diff returns the changes from the current rows to the set, and the policies after them. New overrides have an actor
// as their author.
func (set Set) diff(ctx context.Context, q querier, actor string) (d SetDiff, after []Policy, err error) {
	namespace := cmp.Or(set.Namespace, defaultNamespace)
	if !set.KeepPolicies {
		d.Diff, after, err = set.diffPolicies(ctx, q, namespace)
	}
	if err == nil {
		d.Costs, err = set.diffCosts(ctx, q, namespace)
	}
	if err == nil {
		d.Prices, err = set.diffPrices(ctx, q, namespace)
	}
	if err == nil {
		d.Tenants, err = set.diffTenants(ctx, q)
	}
	if err == nil {
		d.Overrides, err = set.diffOverrides(ctx, q, actor)
	}
	return d, after, err
}

// diffPolicies returns the changes from the current policies to the set, and the policies after them.
func (set Set) diffPolicies(ctx context.Context, q querier, namespace string) (Diff, []Policy, error) {
	desired := make([]Policy, len(set.Policies))
	for i, p := range set.Policies {
		p.Namespace = cmp.Or(p.Namespace, namespace)
		if p.Namespace != namespace {
			return Diff{}, nil, &InvalidError{
				p.Key().String(),
				"namespace",
				"must be that of the set, " + namespace + ", or left out",
			}
		}
		desired[i] = p
	}
	current, err := policies(ctx, q, PolicyFilter{Namespace: namespace})
	if err != nil {
		return Diff{}, nil, err
	}
	d, err := Compare(current, desired)
	if set.Partial {
		desired, d.Delete = append(desired, d.Delete...), nil
	}
	return d, desired, err
}

// checkWritten returns the faults of the first policy that cannot be written.
func checkWritten(d *Diff) error {
	for _, p := range d.written() {
		if err := p.check(); err != nil {
			return err
		}
	}
	return nil
}

// writePolicies writes the changes, after a check of the policies.
func writePolicies(ctx context.Context, tx pgx.Tx, d *Diff) error {
	if err := checkWritten(d); err != nil {
		return err
	}
	return policyTable.write(ctx, tx, d)
}

// write writes the changes of policies, then those of costs, prices, tenants and overrides.
func (d SetDiff) write(ctx context.Context, tx pgx.Tx) error {
	for _, write := range [...]func() error{
		func() error { return writePolicies(ctx, tx, &d.Diff) },
		func() error { return costTable.write(ctx, tx, d.Costs) },
		func() error { return priceTable.write(ctx, tx, d.Prices) },
		func() error { return tenantTable.write(ctx, tx, d.Tenants) },
		func() error { return overrideTable.write(ctx, tx, d.Overrides) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

// Diff holds the changes from one set of policies to another.
type Diff = RowDiff[Policy]

// ChangedFields names the fields in which two policies differ, with their values as JSON: limit: 1000 → 500.
func ChangedFields(before, after Policy) string {
	var changes []string
	for _, f := range schema.Fields[schema.Policy]() {
		was, errWas := json.Marshal(f.In(&before.Policy))
		is, errIs := json.Marshal(f.In(&after.Policy))
		if errWas == nil && errIs == nil && string(was) != string(is) {
			changes = append(changes, fmt.Sprintf("%s: %s → %s", f.Name, was, is))
		}
	}
	return strings.Join(changes, ", ")
}

// Compare returns the changes from the current policies to the desired ones. Create and Update have the order of
// desired, with defaults filled in; Delete has the order of current. Two desired policies with the same key are an
// InvalidError.
func Compare(current, desired []Policy) (Diff, error) {
	d, err := compareRows(current, desired, false, func(p Policy) PolicyKey { return canonical(p.Key()) },
		func(before, after Policy) (Policy, bool) {
			after = after.withDefaults()
			after.ID, after.Revision = before.ID, before.Revision
			return after, !before.equal(after)
		})
	if twice, ok := errors.AsType[*InvalidError](err); ok {
		twice.Problem += ": a name and a match may have one policy"
	}
	if err != nil {
		return Diff{}, err
	}
	return *d, nil
}

// String names the policy as people do.
func (p Policy) String() string { return p.Key().String() }

// equal reports whether two policies with defaults filled in are the same.
func (p Policy) equal(other Policy) bool {
	costs := p.Cost == nil && other.Cost == nil || p.Cost != nil && other.Cost != nil && *p.Cost == *other.Cost
	records := p.Settle.Equal(other.Settle) && p.Fair.Equal(other.Fair) && p.Anchor.Equal(other.Anchor) &&
		p.Match.Equal(other.Match)
	p.Cost, other.Cost, p.Settle, other.Settle, p.Fair, other.Fair = nil, nil, nil, nil, nil, nil
	p.Anchor, other.Anchor, p.Match, other.Match = nil, nil, nil, nil
	return costs && records && p == other
}

// canonical returns the key with the canonical spelling of its endpoint, so that names of parameters do not matter. The
// SQL function rate_limiter.canonical_endpoint does the same.
func canonical(k PolicyKey) PolicyKey {
	k.Endpoint = schema.CanonicalEndpoint(k.Endpoint)
	return k
}
