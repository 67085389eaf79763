package rows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Values of the Revision of a write, besides the revision that the row must have.
const (
	AnyRevision int64 = 0  // with or without a row, of any revision
	Absent      int64 = -1 // there must be no row
	Present     int64 = -2 // there must be a row, of any revision
)

// PutPolicy replaces the policy of the same key, or adds p, as p.Revision allows. It returns the row after the write,
// and the version in which it is in force. Writing the current values changes nothing.
func (s *DB) PutPolicy(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	key := p.Key()
	return write(ctx, s, "put "+key.String(), c, func(tx pgx.Tx) (Policy, error) {
		statement := updatePolicies
		current, err := policyByKey(ctx, tx, key)
		if isMissing(err) && (p.Revision == AnyRevision || p.Revision == Absent) {
			statement, err = insertPolicies, nil
		}
		if err == nil {
			err = sameRevision(key.String(), p.Revision, current.Revision)
		}
		if err != nil {
			return Policy{}, err
		}
		p.ID = current.ID
		if err := putPolicies(ctx, tx, statement, []Policy{p}); err != nil {
			return Policy{}, err
		}
		return policyByKey(ctx, tx, key)
	})
}

// PutPolicyByID replaces the policy of p.ID, or returns a NotFoundError. The key must stay: another one is an
// InvalidError. It returns the same as PutPolicy.
func (s *DB) PutPolicyByID(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	what := fmt.Sprint("policy ", p.ID)
	return write(ctx, s, "put "+what, c, func(tx pgx.Tx) (Policy, error) {
		current, err := policyByID(ctx, tx, p.ID)
		if err == nil {
			err = sameRevision(what, p.Revision, current.Revision)
		}
		if err == nil {
			err = sameKey(what, current.Key(), p.Key())
		}
		if err == nil {
			err = putPolicies(ctx, tx, updatePolicies, []Policy{p})
		}
		if err != nil {
			return Policy{}, err
		}
		return policyByID(ctx, tx, p.ID)
	})
}

// DeletePolicy deletes a policy, or returns a NotFoundError. A revision other than AnyRevision must be the policy's. It
// returns the version of the deletion.
func (s *DB) DeletePolicy(ctx context.Context, c Change, key PolicyKey, revision int64) (int64, error) {
	return s.deletePolicy(ctx, c, key.String(), revision, func(tx pgx.Tx) (Policy, error) {
		return policyByKey(ctx, tx, key)
	})
}

// DeletePolicyByID deletes a policy as DeletePolicy does.
func (s *DB) DeletePolicyByID(ctx context.Context, c Change, id, revision int64) (int64, error) {
	return s.deletePolicy(ctx, c, fmt.Sprint("policy ", id), revision, func(tx pgx.Tx) (Policy, error) {
		return policyByID(ctx, tx, id)
	})
}

func (s *DB) deletePolicy(
	ctx context.Context,
	c Change,
	what string,
	revision int64,
	find func(pgx.Tx) (Policy, error),
) (int64, error) {
	_, version, err := write(ctx, s, "delete "+what, c, func(tx pgx.Tx) (noResult, error) {
		current, err := find(tx)
		if err == nil {
			err = sameRevision(what, revision, current.Revision)
		}
		if err == nil {
			_, err = tx.Exec(ctx, deletePolicies, []int64{current.ID})
		}
		return noResult{}, err
	})
	return version, err
}

// sameRevision returns a ConflictError if a write was made from another revision than the current one; a current
// revision of 0 means that there is no row.
func sameRevision(what string, wanted, current int64) error {
	switch {
	case wanted == AnyRevision, wanted == current, wanted == Present && current > 0, wanted == Absent && current == 0:
		return nil
	case wanted == Absent:
		return &ConflictError{what, "it exists already", current}
	}
	return &ConflictError{
		what,
		fmt.Sprintf("it has revision %d, not %d: it was changed in the meantime: read it again", current, wanted),
		current,
	}
}

// sameKey returns an InvalidError if a write changes the key of a policy: nodes find a policy by its key.
func sameKey(what string, current, wanted PolicyKey) error {
	current, wanted = canonical(current), canonical(wanted)
	for _, part := range [...][3]string{
		{"namespace", current.Namespace, wanted.Namespace},
		{"name", current.Name, wanted.Name},
		{"tier", current.Tier, wanted.Tier},
		{"tenant", current.Tenant, wanted.Tenant},
		{"user", current.User, wanted.User},
		{"credential", current.Credential, wanted.Credential},
		{"ip", current.IP, wanted.IP},
		{"for", current.For, wanted.For},
		{"endpoint", current.Endpoint, wanted.Endpoint},
	} {
		if part[1] != part[2] {
			return &InvalidError{what, part[0], fmt.Sprintf("must stay %q: delete the policy, and make another", part[1])}
		}
	}
	return nil
}

// policyKeyColumns lists the columns of a key, which a write does not change. The endpoint is not among them: the names
// of its parameters may change.
var policyKeyColumns = []string{"namespace", "name", "tier", "tenant", "user", "credential", "ip", "for"}

// Each statement writes any number of policies. The first two take them as JSON.
var (
	insertPolicies = fmt.Sprintf(`INSERT INTO rate_limiter.policies (%s)
		SELECT %s FROM jsonb_populate_recordset(NULL::rate_limiter.policies, $1) n`,
		policyColumns.names(), policyColumns.values("n"))

	updatePolicies = fmt.Sprintf(`UPDATE rate_limiter.policies p SET %s
		FROM jsonb_populate_recordset(NULL::rate_limiter.policies, $1) n WHERE p.id = n.id`,
		policyColumns.without(policyKeyColumns...).set("n"))

	deletePolicies = `DELETE FROM rate_limiter.policies WHERE id = ANY($1)`
)

// putPolicies writes policies by one of the statements. An error names the policy with the fault; if Postgres alone
// rejects one of several, the error has the field and the problem only.
func putPolicies(ctx context.Context, tx pgx.Tx, statement string, list []Policy) error {
	if len(list) == 0 {
		return nil
	}
	for _, p := range list {
		if err := p.check(); err != nil {
			return err
		}
	}
	complete := make([]Policy, len(list))
	for i, p := range list {
		complete[i] = p.withDefaults()
	}
	rows, err := json.Marshal(complete)
	if err == nil {
		_, err = tx.Exec(ctx, statement, rows)
	}
	if invalid := new(InvalidError); len(list) == 1 && errors.As(fail("write policies", err), &invalid) {
		return &InvalidError{list[0].Key().String(), invalid.Field, invalid.Problem}
	}
	return err
}

func (p Policy) withDefaults() Policy {
	key := p.Key()
	p.Namespace, p.IP, p.Algorithm = key.Namespace, key.IP, cmp.Or(p.Algorithm, defaultAlgorithm)
	return p
}

// check returns the faults of p, in the words of all ways to write a policy.
func (p Policy) check() error {
	var faults []error
	for _, f := range policy.Faults(p.withDefaults().Policy) {
		faults = append(faults, &InvalidError{p.Key().String(), f.Path, f.Message})
	}
	return errors.Join(faults...)
}
