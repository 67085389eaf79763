package pgstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Action is something that an operator did beside the tables, such as resetting the buckets of a tenant.
type Action struct {
	Operation string          `json:"operation"`         // what was done, in one word: reset
	Key       string          `json:"key,omitempty"`     // what it was done to
	Tenant    string          `json:"tenant,omitempty"`  // whom it is about; "": not one tenant
	Details   json.RawMessage `json:"details,omitempty"` // what else the audit is to tell; nil: nothing
}

// actionTime is how long an action may take that the audit tells, with the remembering of its key.
const actionTime = 10 * time.Second

// Do tells an action in the audit and then has it done: without a record it is not. Once recorded it goes on when ctx
// ends, for at most 10 seconds. It makes no version. The error of do is returned as it is, and the audit then tells an
// action that may not have been done.
//
// Under c.Idempotency the action is done once, and answer, a pointer to what the caller is told of it, is remembered
// when it has been done: a replay does nothing, and overwrites answer with what was remembered. Of two at once the
// second waits until the first is done, for at most half of the time until the deadline of ctx, and is then an
// UnderwayError. What was not done, because do failed or the process has died, is recorded and done when it is sent
// again. If the key of what was done cannot be kept, that is an UnkeptKeyError.
func (s *Store) Do(ctx context.Context, c Change, a Action, answer any, do func(context.Context) error) error {
	if a.Operation == "" {
		return &InvalidError{Field: "operation", Problem: "must be given: what was done?"}
	}
	return s.alone(ctx, c.Idempotency, func() error {
		if err := s.record(ctx, c, a, answer); err != nil || c.Idempotency != nil && c.Idempotency.Replayed {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actionTime)
		defer cancel()
		if err := do(ctx); err != nil {
			return err
		}
		return s.keep(ctx, c, a, answer)
	})
}

// record tells an action in the audit, unless it was done under the key already.
func (s *Store) record(ctx context.Context, c Change, a Action, answer any) error {
	once, replayed := c.Idempotency, false
	c.Idempotency = nil // whether the action will be done is not known yet
	_, _, err := write(ctx, s, "record the action "+a.Operation, c, func(tx pgx.Tx) (nothing, error) {
		var (
			version int64
			err     error
		)
		if replayed, err = once.replay(ctx, tx, answer, &version); err == nil && !replayed {
			_, err = tx.Exec(ctx, `SELECT rate_limiter.record_action($1, $2, $3, $4)`, a.Operation, a.Key, a.Tenant, a.Details)
		}
		return nothing{}, err
	})
	if err == nil && once != nil {
		once.Replayed = replayed
	}
	return err
}

// keep remembers the key of an action that has been done.
func (s *Store) keep(ctx context.Context, c Change, a Action, answer any) error {
	if c.Idempotency == nil {
		return nil
	}
	if _, _, err := write(
		ctx,
		s,
		"remember the action "+a.Operation,
		c,
		func(pgx.Tx) (any, error) { return answer, nil },
	); err != nil {
		return &UnkeptKeyError{err}
	}
	return nil
}

// UnderwayError is an action under a key of which the first one is not done yet. Nothing was done, or recorded.
type UnderwayError struct{ Key string }

func (e *UnderwayError) Error() string {
	return fmt.Sprintf("the first request with the idempotency key %q is still in progress: retry in a moment", e.Key)
}

// UnkeptKeyError is an action that was done, and whose key is not known: sent again, it is done again.
type UnkeptKeyError struct{ Err error }

func (e *UnkeptKeyError) Error() string {
	return "it was done, but its idempotency key was not kept: " + e.Err.Error()
}

// Unwrap is why the key was not kept.
func (e *UnkeptKeyError) Unwrap() error { return e.Err }
