package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// MovedError reports that the active policies are not as a candidate needs them. Nothing was written. It wraps a
// ConflictError.
type MovedError struct {
	Conflict ConflictError
	Diff     Diff // how they have changed
}

func (e *MovedError) Error() string { return e.Conflict.Error() }

// Unwrap returns the conflict.
func (e *MovedError) Unwrap() error { return &e.Conflict }

// moved returns a MovedError, or nil if nothing has changed. what describes the changes; %s stands for the policies.
func moved(candidate string, d Diff, what string) error {
	if d.Empty() {
		return nil
	}
	return &MovedError{ConflictError{What: candidateNamed(candidate), Problem: fmt.Sprintf(what, namesOf(&d))}, d}
}

const maxNamed = 5

// namesOf names the changed policies, and how they have changed.
func namesOf(d *Diff) string {
	var names []string
	for _, p := range d.Create {
		names = append(names, p.Key().String()+" (new)")
	}
	for _, r := range d.Update {
		names = append(names, r.Before.Key().String()+" (changed)")
	}
	for _, p := range d.Delete {
		names = append(names, p.Key().String()+" (deleted)")
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Promotion is what a candidate is promoted under.
type Promotion struct {
	UnchangedSince int64 // the last version of its policies that the caller has seen; 0: any

	Approval
}

// PromoteCandidate applies the changes of a candidate to the active policies, in one transaction and one version, and
// keeps what they replace. If its policies have changed since the caller has seen them, or there are none, it returns a
// ConflictError. If the active policies have changed since its base, it returns a MovedError. If Accept declines the
// changes, it returns a DeclinedError.
func (s *DB) PromoteCandidate(ctx context.Context, c Change, name string, p Promotion) (Diff, int64, error) {
	return writeCandidate(ctx, s, "promote", c, name, func(tx pgx.Tx, of Candidate) (d Diff, err error) {
		conflict := &ConflictError{What: candidateNamed(name)}
		if of.Policies == 0 {
			conflict.Problem = "it changes no policy: put one first, or drop it"
			return d, conflict
		}
		if p.UnchangedSince != 0 && of.PoliciesAt > p.UnchangedSince {
			conflict.Problem = fmt.Sprintf("its policies have changed in version %d, after version %d: look at them again",
				of.PoliciesAt, p.UnchangedSince)
			return d, conflict
		}
		if d, err = movedSince(ctx, tx, of.BaseAudit); err == nil {
			err = moved(name, d, fmt.Sprintf("policies have changed since version %d, which it is based on: %%s: "+
				"look at its diff, and rebase it", of.BaseVersion))
		}
		if err == nil {
			d, err = applyCandidate(ctx, tx, name, p.Approval)
		}
		if err == nil {
			_, err = of.end(ctx, tx, CandidatePromoted)
		}
		return d, err
	})
}

// applyCandidate applies the changes of a candidate to the active policies if they are approved, and keeps what they
// replace.
func applyCandidate(ctx context.Context, tx pgx.Tx, name string, a Approval) (Diff, error) {
	changes, current, d, err := proposal(ctx, tx, name)
	if err == nil {
		err = a.approve(ctx, tx, changes, d)
	}
	if err == nil {
		err = changes.keep(ctx, tx, current)
	}
	if err == nil {
		err = writePolicies(ctx, tx, &d)
	}
	return d, err
}

// proposal returns the changes of a candidate, the active policies that it changes, and what it makes of them.
func proposal(ctx context.Context, q querier, name string) (c candidateChanges, current []Policy, d Diff, err error) {
	if c, current, err = changesAndActive(ctx, q, name); err == nil {
		d, err = Compare(current, c.puts())
	}
	return c, current, d, err
}

// keep stores the active policies beside the changes that replace them.
func (c candidateChanges) keep(ctx context.Context, tx pgx.Tx, current []Policy) error {
	ids := map[PolicyKey]int64{}
	for i := range c {
		ids[canonical(c[i].PolicyKey)] = c[i].ID
	}
	kept := make(candidateChanges, len(current))
	for i, p := range current {
		kept[i] = candidateChange{ID: ids[canonical(p.Key())], Was: &p.Policy}
	}
	list, err := json.Marshal(kept)
	if err == nil {
		_, err = tx.Exec(ctx, `UPDATE rate_limiter.candidate_policies c SET was = n."Was"
			FROM jsonb_to_recordset($1) AS n("ID" bigint, "Was" jsonb) WHERE c.id = n."ID"`, list)
	}
	if err != nil {
		return fmt.Errorf("keep the replaced policies: %w", err)
	}
	return nil
}

// RollBackCandidate restores the policies that the promotion of a candidate has replaced, in one transaction and one
// version. If one of them has changed since the promotion, it returns a MovedError.
func (s *DB) RollBackCandidate(ctx context.Context, c Change, name string) (Diff, int64, error) {
	return write(ctx, s, "roll back "+candidateNamed(name), c, func(tx pgx.Tx) (d Diff, err error) {
		of, err := candidateByName(ctx, tx, name)
		if err == nil {
			err = of.in(c, CandidatePromoted)
		}
		if err != nil {
			return d, err
		}
		changes, current, err := changesAndActive(ctx, tx, of.Name)
		if err == nil {
			d, err = Compare(changes.puts(), current)
		}
		if err == nil {
			err = moved(name, d, "policies that it has changed are not as it left them: %s: "+
				"restore them as it promoted them, or change the policies themselves")
		}
		if err == nil {
			d, err = Compare(current, changes.was())
		}
		if err == nil {
			err = writePolicies(ctx, tx, &d)
		}
		if err == nil {
			_, err = of.end(ctx, tx, CandidateRolledBack)
		}
		return d, err
	})
}

// RebaseCandidate makes the active policies the base of a candidate. seen is the version of them that the caller has
// compared; if policies have changed after it, RebaseCandidate returns a MovedError.
func (s *DB) RebaseCandidate(ctx context.Context, c Change, name string, seen int64) (Candidate, int64, error) {
	return writeCandidate(ctx, s, "rebase", c, name, func(tx pgx.Tx, of Candidate) (Candidate, error) {
		var current, last int64
		err := tx.QueryRow(ctx, `SELECT version, (SELECT coalesce(max(id), $1) FROM rate_limiter.audit
				WHERE id > $1 AND version <= $2) FROM rate_limiter.version`, of.BaseAudit, seen).Scan(&current, &last)
		if err != nil {
			return of, err
		}
		if seen < of.BaseVersion || seen > current {
			return of, &InvalidError{Field: "version", Problem: fmt.Sprintf(
				"must be %d to %d: the version of the active policies that its diff has compared", of.BaseVersion, current)}
		}
		d, err := movedSince(ctx, tx, last)
		if err == nil {
			err = moved(name, d, fmt.Sprintf("policies have changed again since version %d: %%s: "+
				"look at its diff again", seen))
		}
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE rate_limiter.candidates SET base_version = base_version + 1 WHERE name = $1`, name)
		}
		if err != nil {
			return of, err
		}
		return candidateByName(ctx, tx, name)
	})
}

// Approval decides within the transaction of a write whether it is made. The zero value accepts every write.
type Approval struct {
	// Config is the plugin's config, for the review; nil: unknown.
	Config *resolve.Plan
	// Accept runs before the write, with the review of what is written. If it returns an error, nothing is written, and
	// the write returns a DeclinedError. nil accepts everything.
	Accept func(Review) error
}

// approve reviews all changes of a candidate, as they are when they are enforced, and returns why they are declined. d
// holds what they make of the active policies.
func (a Approval) approve(ctx context.Context, tx pgx.Tx, changes candidateChanges, d Diff) error {
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

// review reviews written policies of one namespace beside the active policies with the changes. Of the written ones,
// created are new.
func (c candidateChanges) review(
	ctx context.Context, q querier, config *resolve.Plan, written, created []Policy,
) (Review, error) {
	active, err := rowsToCompare(ctx, q, written...)
	if err != nil {
		return Review{}, err
	}
	if len(c) == 0 {
		return reviewAmong(ctx, q, config, written, active, created, nil)
	}
	beside := map[PolicyKey]Policy{}
	for _, row := range active {
		beside[canonical(row.Key())] = row
	}
	for i := range c {
		key := canonical(c[i].PolicyKey)
		if delete(beside, key); c[i].Body != nil && key.Namespace == written[0].Key().Namespace {
			beside[key] = Policy{Policy: *c[i].Body}
		}
	}
	rows := slices.SortedFunc(maps.Values(beside), func(a, b Policy) int {
		return strings.Compare(a.Key().String(), b.Key().String())
	})
	return reviewAmong(ctx, q, config, written, rows, created, nil)
}
