package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// PutPolicy writes p over the policy of the same key, or as a new one. It returns the row as it is then, and the version
// in which it is in force. Writing what is there already changes nothing.
func (s *Store) PutPolicy(ctx context.Context, c Change, p Policy) (Policy, int64, error) {
	var written Policy
	version, err := s.write(ctx, "put "+p.Key().String(), c, func(tx pgx.Tx) error {
		statement := updatePolicies
		current, err := policy(ctx, tx, p.Key())
		if missing := new(NotFoundError); errors.As(err, &missing) && p.Revision == 0 {
			statement, err = insertPolicies, nil
		}
		if err == nil {
			err = sameRevision(p.Key().String(), p.Revision, current.Revision)
		}
		if err != nil {
			return err
		}
		p.ID = current.ID
		if err := putPolicies(ctx, tx, statement, []Policy{p}); err != nil {
			return err
		}
		written, err = policy(ctx, tx, p.Key())
		return err
	})
	return written, version, err
}

// DeletePolicy deletes a policy, or is a NotFoundError. A revision other than 0 must be the policy's. It returns the
// version in which the policy is gone.
func (s *Store) DeletePolicy(ctx context.Context, c Change, key PolicyKey, revision int64) (int64, error) {
	return s.write(ctx, "delete "+key.String(), c, func(tx pgx.Tx) error {
		current, err := policy(ctx, tx, key)
		if err == nil {
			err = sameRevision(key.String(), revision, current.Revision)
		}
		if err == nil {
			_, err = tx.Exec(ctx, deletePolicies, []int64{current.ID})
		}
		return err
	})
}

// sameRevision refuses a write that was made from another revision than the current one.
func sameRevision(what string, wanted, current int64) error {
	if wanted == 0 || wanted == current {
		return nil
	}
	return &ConflictError{what, fmt.Sprintf("it has revision %d, not %d: somebody else has changed it, read it again", current, wanted)}
}

// The three statements write any number of policies. Those of the first two take them as JSON, of which an absent field
// is null; so absent texts become empty here.
const (
	insertPolicies = `INSERT INTO rate_limiter.policies (namespace, name, tier, tenant, endpoint, scope, "limit", window_size,
			algorithm, burst, soft_threshold_pct, hard_threshold_pct, soft_only, mode, cost, fail_mode, accuracy, slot)
		SELECT namespace, name, coalesce(tier, ''), coalesce(tenant, ''), coalesce(endpoint, ''), scope, "limit", window_size,
			algorithm, burst, soft_threshold_pct, hard_threshold_pct, coalesce(soft_only, false), coalesce(mode, ''), cost,
			coalesce(fail_mode, ''), coalesce(accuracy, ''), slot
		FROM jsonb_populate_recordset(NULL::rate_limiter.policies, $1)`

	updatePolicies = `UPDATE rate_limiter.policies p SET endpoint = coalesce(n.endpoint, ''), scope = n.scope, "limit" = n.limit,
			window_size = n.window_size, algorithm = n.algorithm, burst = n.burst, soft_threshold_pct = n.soft_threshold_pct,
			hard_threshold_pct = n.hard_threshold_pct, soft_only = coalesce(n.soft_only, false), mode = coalesce(n.mode, ''),
			cost = n.cost, fail_mode = coalesce(n.fail_mode, ''), accuracy = coalesce(n.accuracy, '')
		FROM jsonb_populate_recordset(NULL::rate_limiter.policies, $1) n WHERE p.id = n.id`

	deletePolicies = `DELETE FROM rate_limiter.policies WHERE id = ANY($1)`
)

// putPolicies writes policies by one of the statements. When one is refused, the error names it.
func putPolicies(ctx context.Context, tx pgx.Tx, statement string, list []Policy) error {
	if len(list) == 0 {
		return nil
	}
	if err := tryPolicies(ctx, tx, statement, list); err != nil {
		return blame(ctx, tx, statement, list, err)
	}
	for _, p := range list {
		if err := p.compile(); err != nil {
			return err
		}
	}
	return nil
}

// blame finds out for which policy a statement was refused, by writing one after the other.
func blame(ctx context.Context, tx pgx.Tx, statement string, list []Policy, err error) error {
	invalid := new(InvalidError)
	if !errors.As(fail("write policies", err), &invalid) {
		return err
	}
	for _, p := range list {
		alone := tryPolicies(ctx, tx, statement, []Policy{p})
		if errors.As(fail("write "+p.Key().String(), alone), &invalid) {
			return &InvalidError{p.Key().String(), invalid.Field, invalid.Problem}
		}
		if alone != nil {
			return alone
		}
	}
	return err
}

// tryPolicies writes policies in a savepoint: when one is refused, the transaction goes on without them.
func tryPolicies(ctx context.Context, tx pgx.Tx, statement string, list []Policy) error {
	complete := make([]Policy, len(list))
	for i, p := range list {
		complete[i] = p.withDefaults()
	}
	rows, err := json.Marshal(complete)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		_, err := savepoint.Exec(ctx, statement, rows)
		return err
	})
}

func (p Policy) withDefaults() Policy {
	key := p.Key()
	p.Namespace, p.Slot, p.Algorithm = key.Namespace, key.Slot, cmp.Or(p.Algorithm, defaultAlgorithm)
	return p
}

// compile tells what no constraint can: that the limit's arithmetic would not be exact.
func (p Policy) compile() error {
	algorithm, err := limit.ParseAlgorithm(p.withDefaults().Algorithm)
	if err != nil {
		return &InvalidError{p.Key().String(), "algorithm", err.Error()}
	}
	_, err = limit.New(limit.Spec{
		Algorithm: algorithm, Quantity: p.Limit, Window: limit.Micros(p.WindowSize) * limit.Second, Burst: p.Burst,
		SoftPct: p.SoftThresholdPct, HardPct: p.HardThresholdPct, SoftOnly: p.SoftOnly,
	})
	if field := new(limit.FieldError); errors.As(err, &field) {
		return &InvalidError{p.Key().String(), field.Field, field.Problem}
	}
	return err
}
