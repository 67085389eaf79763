package rows

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// Approval decides within the transaction of a write whether it is made. The zero value accepts every write.
type Approval struct {
	// Config is the plugin's config, for the review; nil: unknown.
	Config *resolve.Plan
	// Accept runs before the write, with the review of what is written. If it returns an error, nothing is written, and
	// the write returns a DeclinedError. nil accepts everything.
	Accept func(Review) error
}

// approve reviews all changes of a candidate, as they are when they are enforced, and returns why they are declined.
func (a Approval) approve(ctx context.Context, tx pgx.Tx, candidate string) error {
	changes, current, err := changesAndActive(ctx, tx, candidate)
	if err != nil {
		return err
	}
	d, err := Compare(current, changes.puts())
	if err != nil {
		return err
	}
	return a.approveChanges(ctx, tx, changes, d)
}

// approveChanges does what approve does. d holds what the changes make of the active policies.
func (a Approval) approveChanges(ctx context.Context, tx pgx.Tx, changes candidateChanges, d Diff) error {
	if a.Accept == nil {
		return nil
	}
	var all Review
	written, created := byNamespace(d.written(), nil), byNamespace(d.Create, nil)
	for _, namespace := range slices.Sorted(maps.Keys(written)) {
		r, err := changes.review(ctx, tx, a.Config, written[namespace], created[namespace])
		if err != nil {
			return err
		}
		all.LockOuts = append(all.LockOuts, r.LockOuts...)
		all.Warnings = append(all.Warnings, r.Warnings...)
	}
	if why := a.Accept(all); why != nil {
		return &DeclinedError{why}
	}
	return nil
}

// ReviewCandidate reviews a put of policies of one namespace into a candidate as ReviewPolicy does a write of one,
// beside the active policies with the changes of the candidate.
func (s *DB) ReviewCandidate(
	ctx context.Context, config *resolve.Plan, candidate string, list ...Policy,
) (Review, error) {
	changes, err := changesOf(ctx, s.pool, candidate)
	var r Review
	if err == nil {
		r, err = changes.review(ctx, s.pool, config, list, list)
	}
	return r, fail("review the policies of "+candidateNamed(candidate), err)
}

// review reviews written policies of one namespace beside the active policies with the changes. Of the written ones,
// created are new.
func (c candidateChanges) review(
	ctx context.Context, q querier, config *resolve.Plan, written, created []Policy,
) (Review, error) {
	active, err := rowsToCompare(ctx, q, written...)
	if err != nil {
		return Review{}, err
	}
	beside := map[PolicyKey]Policy{}
	for _, row := range active {
		beside[canonical(row.Key())] = row
	}
	for i := range c {
		key := canonical(c[i].Key)
		if delete(beside, key); c[i].Policy != nil && key.Namespace == written[0].Key().Namespace {
			beside[key] = *c[i].Policy
		}
	}
	rows := slices.SortedFunc(maps.Values(beside), func(a, b Policy) int {
		return strings.Compare(a.Key().String(), b.Key().String())
	})
	return reviewAmong(ctx, q, config, written, rows, created, nil)
}
