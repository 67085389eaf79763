package pgstore

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Set is what the active policies of one namespace are to be.
type Set struct {
	Namespace string   // "": default
	Policies  []Policy // without a namespace they are in that of the set; with another they are refused
	Partial   bool     // policies that are not in the set stay

	// Config is the plugin's config, with which Apply reviews what it is about to do; nil: it is not at hand.
	Config *policy.Plan
	// Accept runs before Apply writes anything, with what it is about to do. Its error ends Apply as a DeclinedError.
	// nil accepts everything.
	Accept func(Diff, Review) error
}

// Diff tells what Apply would do, without doing it.
func (s *Store) Diff(ctx context.Context, set Set) (Diff, error) {
	d, _, err := set.diff(ctx, s.pool)
	return d, fail("compare policies", err)
}

// Apply makes the policies those of a set, in one transaction and one version. It returns what it did, and the version
// in which the set is in force. Applying a set twice changes nothing the second time.
func (s *Store) Apply(ctx context.Context, c Change, set Set) (Diff, int64, error) {
	return write(ctx, s, "apply policies", c, func(tx pgx.Tx) (Diff, error) {
		d, after, err := set.diff(ctx, tx)
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
func (set Set) accept(ctx context.Context, q query, d Diff, after []Policy) error {
	review, err := reviewSet(ctx, q, set.Config, d, after)
	if err != nil {
		return err
	}
	if why := set.Accept(d, review); why != nil {
		return &DeclinedError{why}
	}
	return nil
}

// diff returns what lies between the policies that are there and the set, and the policies as they will be.
func (set Set) diff(ctx context.Context, q query) (Diff, []Policy, error) {
	namespace := cmp.Or(set.Namespace, defaultNamespace)
	desired := make([]Policy, len(set.Policies))
	for i, p := range set.Policies {
		p.Namespace, p.Slot = cmp.Or(p.Namespace, namespace), cmp.Or(p.Slot, SlotActive)
		if p.Namespace != namespace {
			return Diff{}, nil, &InvalidError{
				p.Key().String(),
				"namespace",
				"must be that of the set, " + namespace + ", or left out",
			}
		}
		if p.Slot != SlotActive {
			return Diff{}, nil, &InvalidError{
				p.Key().String(),
				"slot",
				"must be active, or left out: a set is of active policies",
			}
		}
		desired[i] = p
	}
	current, err := all(policies(ctx, q, PolicyFilter{Namespace: namespace, Slot: SlotActive}))
	if err != nil {
		return Diff{}, nil, err
	}
	d, err := Compare(current, desired)
	if set.Partial {
		desired, d.Delete = append(desired, d.Delete...), nil
	}
	return d, desired, err
}

// write does what the diff says. Each kind of change is one statement, however many policies it is about.
func (d Diff) write(ctx context.Context, tx pgx.Tx) error {
	after := make([]Policy, len(d.Update))
	for i, r := range d.Update {
		after[i] = r.After
	}
	ids := make([]int64, len(d.Delete))
	for i, p := range d.Delete {
		ids[i] = p.ID
	}
	if _, err := tx.Exec(ctx, deletePolicies, ids); err != nil {
		return err
	}
	if err := putPolicies(ctx, tx, updatePolicies, after); err != nil {
		return err
	}
	return putPolicies(ctx, tx, insertPolicies, d.Create)
}
