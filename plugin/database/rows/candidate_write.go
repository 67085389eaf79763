package rows

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The most policies that a candidate changes, and the most tenants that are assigned to it by name: every node holds
// them beside the active policies.
const (
	MaxCandidatePolicies = 10_000
	MaxCandidateTenants  = 1000
)

const candidateNameProblem = "must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit"

// CreateCandidate opens a candidate that changes nothing yet. Its base are the active policies of this moment. If
// another one is open, or there was one of this name, it returns a ConflictError.
func (s *DB) CreateCandidate(ctx context.Context, c Change, name string) (Candidate, int64, error) {
	return write(ctx, s, "create "+candidateNamed(name), c, func(tx pgx.Tx) (Candidate, error) {
		if name == "" {
			return Candidate{}, &InvalidError{Field: "name", Problem: candidateNameProblem}
		}
		former, err := candidateByName(ctx, tx, name)
		if err == nil {
			return Candidate{}, &ConflictError{What: candidateNamed(name), Problem: fmt.Sprintf(
				"there is or was one of this name (%s), and its buckets and counts are kept under it: take another name",
				former.State)}
		}
		if !IsMissing(err) {
			return Candidate{}, err
		}
		if open, err := candidateByName(ctx, tx, ""); err == nil {
			return Candidate{}, &ConflictError{What: candidateNamed(open.Name), Problem: fmt.Sprintf(
				"it is open since %s, and only one can be: promote or drop it first", open.CreatedAt.UTC().Format(time.RFC3339))}
		} else if !IsMissing(err) {
			return Candidate{}, err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO rate_limiter.candidates (name) VALUES ($1)`, name); err != nil {
			return Candidate{}, err
		}
		return candidateByName(ctx, tx, name)
	})
}

// writeCandidate runs do in a transaction that changes an open candidate. If it is not open, it returns a
// ConflictError.
func writeCandidate[T any](
	ctx context.Context, s *DB, doing string, c Change, name string, do func(pgx.Tx, Candidate) (T, error),
) (T, int64, error) {
	return write(ctx, s, doing+" "+candidateNamed(name), c, func(tx pgx.Tx) (T, error) {
		var none T
		candidate, err := candidateByName(ctx, tx, name)
		if err == nil && name == "" {
			err = &InvalidError{Field: "candidate", Problem: "must be given"}
		}
		if err == nil {
			err = candidate.in(c, CandidateOpen)
		}
		if err != nil {
			return none, err
		}
		return do(tx, candidate)
	})
}

// in returns a ConflictError unless the candidate has a state, and an error if the write was made from another
// revision.
func (c Candidate) in(by Change, state string) error {
	if err := by.accept(c.Revision); err != nil || c.State == state {
		return err
	}
	problem := "it is open: promote it first"
	if c.State != CandidateOpen {
		problem = fmt.Sprintf("it was %s at %s by %s: %s", strings.ReplaceAll(c.State, "_", " "),
			c.EndedAt.UTC().Format(time.RFC3339), c.EndedBy, c.EndReason)
	}
	return &ConflictError{What: candidateNamed(c.Name), Problem: problem}
}

// PutCandidatePolicies makes a candidate put policies in place of the active ones of their keys. They are checked as
// PutPolicy checks one. It returns what the candidate then changes in these policies. It does not change one any more
// that is put as it is active.
func (s *DB) PutCandidatePolicies(
	ctx context.Context, c Change, candidate string, list ...Policy,
) (Diff, int64, error) {
	return writeCandidate(ctx, s, "put policies into", c, candidate, func(tx pgx.Tx, of Candidate) (Diff, error) {
		keys := make([]PolicyKey, len(list))
		for i, p := range list {
			keys[i] = p.Key()
		}
		current, err := activePolicies(ctx, tx, keys...)
		if err != nil {
			return Diff{}, err
		}
		d, err := Compare(current, list)
		if err == nil {
			err = checkWritten(&d)
		}
		if err != nil {
			return Diff{}, err
		}
		return d, of.changePolicies(ctx, tx, keys, d)
	})
}

// changePolicies makes the candidate put the new and the changed policies of a difference, and leave the others of keys
// as they are. The number of statements does not grow with the policies: all other writes wait for them.
func (c Candidate) changePolicies(ctx context.Context, tx pgx.Tx, keys []PolicyKey, d Diff) error {
	puts := d.written()
	isPut := map[PolicyKey]bool{}
	changes := make([]candidateChange, len(puts))
	for i, p := range puts {
		isPut[canonical(p.Key())] = true
		body := p.withDefaults().Policy
		changes[i] = candidateChange{PolicyKey: p.Key(), Body: &body}
	}
	kept := slices.DeleteFunc(slices.Clone(keys), func(key PolicyKey) bool { return isPut[canonical(key)] })
	err := c.change(ctx, tx, changes...)
	if err == nil {
		_, err = removeChanges(ctx, tx, c.Name, kept...)
	}
	if err != nil {
		return err
	}
	return c.checkSize(ctx, tx)
}

// checkSize returns a ConflictError if the candidate changes too many policies.
func (c Candidate) checkSize(ctx context.Context, tx pgx.Tx) error {
	var n int
	err := tx.QueryRow(ctx, `SELECT count(*) FROM rate_limiter.candidate_policies WHERE candidate = $1`, c.Name).Scan(&n)
	if err == nil && n > MaxCandidatePolicies {
		err = &ConflictError{What: candidateNamed(c.Name), Problem: fmt.Sprintf(
			"it would change %d policies, and can change %d: promote what it has, and go on in another one", n,
			MaxCandidatePolicies)}
	}
	return err
}

// DeleteCandidatePolicy makes a candidate delete the active policy of a key, or, if there is none, forget its own. It
// returns what the candidate then changes in that policy. If neither exists, it returns a NotFoundError.
func (s *DB) DeleteCandidatePolicy(
	ctx context.Context, c Change, candidate string, key PolicyKey,
) (Diff, int64, error) {
	return writeCandidate(ctx, s, "delete "+key.String()+" in", c, candidate,
		func(tx pgx.Tx, of Candidate) (Diff, error) {
			current, err := activePolicies(ctx, tx, key.withDefaults())
			if err != nil {
				return Diff{}, err
			}
			if len(current) == 0 {
				err := removeChange(ctx, tx, candidate, key)
				if IsMissing(err) {
					err = &NotFoundError{What: key.String()}
				}
				return Diff{}, err
			}
			return Diff{Delete: current}, of.change(ctx, tx, candidateChange{PolicyKey: current[0].Key()})
		})
}

// UndoCandidatePolicy makes a candidate leave the policy of a key as it is. It returns a NotFoundError if the candidate
// does not change that policy.
func (s *DB) UndoCandidatePolicy(ctx context.Context, c Change, candidate string, key PolicyKey) (int64, error) {
	_, version, err := writeCandidate(ctx, s, "undo "+key.String()+" in", c, candidate,
		func(tx pgx.Tx, _ Candidate) (none noResult, err error) {
			return none, removeChange(ctx, tx, candidate, key)
		})
	return version, err
}

// change makes the candidate put policies, or delete them.
func (c Candidate) change(ctx context.Context, tx pgx.Tx, changes ...candidateChange) error {
	list, err := json.Marshal(changes)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO rate_limiter.candidate_policies
			(candidate, namespace, name, tier, tenant, "user", credential, ip, "for", endpoint, body)
		SELECT $1, namespace, name, tier, tenant, "user", credential, ip, "for", endpoint, "Body"
		FROM jsonb_to_recordset($2) AS k(`+keyColumns+`, "Body" jsonb)
		ON CONFLICT (candidate, tenant, name, tier, rate_limiter.canonical_endpoint(endpoint), namespace, "user", credential,
			ip, "for")
		DO UPDATE SET endpoint = excluded.endpoint, body = excluded.body`, c.Name, list)
	return err
}

// removeChange removes the change of a policy from a candidate, or returns a NotFoundError.
func removeChange(ctx context.Context, tx pgx.Tx, candidate string, key PolicyKey) error {
	removed, err := removeChanges(ctx, tx, candidate, key)
	if err == nil && removed == 0 {
		err = &NotFoundError{What: fmt.Sprintf("a change of %s in %s", key, candidateNamed(candidate))}
	}
	return err
}

// removeChanges removes the changes of policies from a candidate, and returns how many there were.
func removeChanges(ctx context.Context, tx pgx.Tx, candidate string, keys ...PolicyKey) (int64, error) {
	complete := make([]PolicyKey, len(keys))
	for i, key := range keys {
		complete[i] = key.withDefaults()
	}
	list, err := json.Marshal(complete)
	if err != nil {
		return 0, err
	}
	done, err := tx.Exec(ctx, `DELETE FROM rate_limiter.candidate_policies p
		USING jsonb_to_recordset($2) AS k(`+keyColumns+`) WHERE p.candidate = $1 AND `+hasKey, candidate, list)
	return done.RowsAffected(), err
}

// Assignment changes for which tenants a candidate is enforced.
type Assignment struct {
	Percent *int64   // of all tenants; nil: as before
	Add     []string // tenants
	Remove  []string // tenants that were added; it does not exclude them from the percentage

	Approval // of what the candidate changes, if it is enforced for more tenants
}

func (a Assignment) check() error {
	if a.Percent == nil && len(a.Add)+len(a.Remove) == 0 {
		return &InvalidError{Field: "percent", Problem: "must be given, or else tenants to assign or to remove"}
	}
	if a.Percent != nil && (*a.Percent < 0 || *a.Percent > 100) {
		return &InvalidError{Field: "percent", Problem: "must be 0 to 100"}
	}
	for _, tenant := range a.Add {
		if tenant == "" || len(tenant) > 128 {
			return &InvalidError{Field: "tenant", Problem: "must have 1 to 128 bytes"}
		}
	}
	return nil
}

// AssignCandidate changes for which tenants a candidate is enforced. If its Accept declines that, it returns a
// DeclinedError.
func (s *DB) AssignCandidate(
	ctx context.Context, c Change, candidate string, a Assignment,
) (Candidate, int64, error) {
	if err := a.check(); err != nil {
		return Candidate{}, 0, err
	}
	return writeCandidate(ctx, s, "assign tenants to", c, candidate, func(tx pgx.Tx, of Candidate) (Candidate, error) {
		if len(a.Add) > 0 || a.Percent != nil && *a.Percent > int64(of.Percent) { // it may be enforced for more tenants
			changes, _, d, err := proposal(ctx, tx, candidate)
			if err == nil {
				err = a.approve(ctx, tx, changes, d)
			}
			if err != nil {
				return of, err
			}
		}
		for _, tenant := range a.Remove {
			err := mustChange(ctx, tx, fmt.Sprintf("an assignment of tenant %s to %s", tenant, candidateNamed(candidate)),
				`DELETE FROM rate_limiter.candidate_tenants WHERE candidate = $1 AND tenant = $2`, candidate, tenant)
			if err != nil {
				return of, err
			}
		}
		if _, err := tx.Exec(ctx, `INSERT INTO rate_limiter.candidate_tenants (candidate, tenant)
			SELECT $1, tenant FROM unnest($2::text[]) tenant ON CONFLICT DO NOTHING`, candidate, a.Add); err != nil {
			return of, err
		}
		if a.Percent != nil {
			_, err := tx.Exec(ctx, `UPDATE rate_limiter.candidates SET percent = $2 WHERE name = $1`, candidate, *a.Percent)
			if err != nil {
				return of, err
			}
		}
		of, err := candidateByName(ctx, tx, candidate)
		if n := len(of.Tenants); err == nil && n > MaxCandidateTenants {
			err = &ConflictError{What: candidateNamed(candidate), Problem: fmt.Sprintf(
				"it would have %d tenants by name, and can have %d: use a percentage", n, MaxCandidateTenants)}
		}
		return of, err
	})
}

// AssignmentWarnings returns what an operator should check of assigned tenants: that the database has nothing about
// one.
func (s *DB) AssignmentWarnings(ctx context.Context, a Assignment) ([]string, error) {
	unknown, err := scalars[string](ctx, s.pool, `SELECT DISTINCT a.tenant FROM unnest($1::text[]) a(tenant)
		WHERE NOT EXISTS (SELECT FROM rate_limiter.tenants t WHERE t.id = a.tenant)
		AND NOT EXISTS (SELECT FROM rate_limiter.policies p WHERE p.tenant = a.tenant)
		AND NOT EXISTS (SELECT FROM rate_limiter.overrides o WHERE o.tenant = a.tenant)
		AND NOT EXISTS (SELECT FROM rate_limiter.usage_names u WHERE u.name = a.tenant) ORDER BY 1`, a.Add)
	var warnings []string
	for _, tenant := range unknown {
		warnings = append(warnings, fmt.Sprintf("the database has nothing about tenant %q, not even usage: "+
			"unless its requests come yet, this assigns no request", tenant))
	}
	return warnings, fail("find tenants", err)
}

// DropCandidate ends a candidate without an effect.
func (s *DB) DropCandidate(ctx context.Context, c Change, name string) (Candidate, int64, error) {
	return writeCandidate(ctx, s, "drop", c, name, func(tx pgx.Tx, of Candidate) (Candidate, error) {
		return of.end(ctx, tx, CandidateDropped)
	})
}

// end gives the candidate its next state.
func (c Candidate) end(ctx context.Context, tx pgx.Tx, state string) (Candidate, error) {
	if _, err := tx.Exec(ctx, `UPDATE rate_limiter.candidates SET state = $2 WHERE name = $1`, c.Name, state); err != nil {
		return c, err
	}
	return candidateByName(ctx, tx, c.Name)
}
