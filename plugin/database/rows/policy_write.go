package rows

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func (p Policy) revision() int64 { return p.Revision }

// find finds the policy of the key.
func (k PolicyKey) find(ctx context.Context, q querier) (Policy, error) {
	return policyByKey(ctx, q, k)
}

// PutPolicy replaces the policy of the same key, or adds p, as p.Revision allows. It returns the row after the write,
// and the version in which it is in force. Writing the current values changes nothing.
func (s *DB) PutPolicy(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	key := p.Key()
	return policyTable.put(ctx, s, c, key.String(), p.Revision, key.find, func(current Policy) (Policy, error) {
		p.ID = current.ID
		return p.withDefaults(), p.check()
	})
}

// PutPolicyByID replaces the policy of p.ID, or returns a NotFoundError. The key must stay: another one is an
// InvalidError. It returns the same as PutPolicy.
func (s *DB) PutPolicyByID(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	what, wanted := fmt.Sprint("policy ", p.ID), p.Revision
	if wanted == AnyRevision {
		wanted = Present
	}
	return policyTable.put(ctx, s, c, what, wanted, policyTable.byKey(what, p.ID), func(current Policy) (Policy, error) {
		return p.withDefaults(), cmp.Or(sameKey(what, current.Key(), p.Key()), p.check())
	})
}

// DeletePolicy deletes a policy, or returns a NotFoundError. A revision other than AnyRevision must be the policy's. It
// returns the version of the deletion.
func (s *DB) DeletePolicy(ctx context.Context, c Change, key PolicyKey, revision int64) (int64, error) {
	return policyTable.delete(ctx, s, c, key.String(), revision, key.find)
}

// DeletePolicyByID deletes a policy as DeletePolicy does.
func (s *DB) DeletePolicyByID(ctx context.Context, c Change, id, revision int64) (int64, error) {
	what := fmt.Sprint("policy ", id)
	return policyTable.delete(ctx, s, c, what, revision, policyTable.byKey(what, id))
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
