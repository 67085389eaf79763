package pgstore

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditEntry is one change of one row, or one action.
type AuditEntry struct {
	ID        int64           `json:"id"` // grows with time
	Version   int64           `json:"version"`
	At        time.Time       `json:"at"`
	Actor     string          `json:"actor"`
	Login     string          `json:"login"` // the database user, whoever the actor is said to be
	Reason    string          `json:"reason"`
	Kind      string          `json:"kind"`      // tier, tenant, policy, override or token; action: see Action
	Operation string          `json:"operation"` // insert, update or delete; an action's own
	Key       string          `json:"key"`       // the name of a tier or token, a tenant's id, the id of a policy or an override
	Tenant    string          `json:"tenant,omitempty"`
	Before    json.RawMessage `json:"before,omitempty"` // the row by its columns; nil for an insert
	After     json.RawMessage `json:"after,omitempty"`  // the row by its columns; nil for a delete
}

// AuditFilter selects audit entries. Each field that is not empty must be met; the zero value selects all.
type AuditFilter struct {
	Tenant, Kind, Key, Actor string

	Since  time.Time // not before this instant
	Until  time.Time // before this instant
	Before int64     // only entries of a smaller ID: the cursor that the last page returned
	Max    int       // at most so many; 0: 100
}

const auditPage = 100

// Audit are the entries that a filter selects, newest first, and the cursor of the next page; 0: there is none.
func (s *Store) Audit(ctx context.Context, f AuditFilter) (entries []AuditEntry, next int64, err error) {
	var w where
	w.equal("tenant", f.Tenant)
	w.equal("kind", f.Kind)
	w.equal("key", f.Key)
	w.equal("actor", f.Actor)
	if !f.Since.IsZero() {
		w.add("at >= %s", f.Since)
	}
	if !f.Until.IsZero() {
		w.add("at < %s", f.Until)
	}
	if f.Before > 0 {
		w.add("id < %s", f.Before)
	}
	page := f.Max
	if page <= 0 {
		page = auditPage
	}
	entries, err = collect[AuditEntry](ctx, s.pool, `SELECT id, version, at, actor, login, reason, kind, operation, key, tenant, before, after
		FROM rate_limiter.audit`+w.String()+` ORDER BY id DESC`+most(page+1), w.args...)
	if err != nil {
		return nil, 0, fail("read the audit", err)
	}
	if len(entries) > page {
		entries = entries[:page]
		next = entries[page-1].ID
	}
	return entries, next, nil
}

// Action is something that an operator did beside the tables, such as resetting the buckets of a tenant.
type Action struct {
	Operation string          `json:"operation"`         // what was done, in one word: reset
	Key       string          `json:"key,omitempty"`     // what it was done to
	Tenant    string          `json:"tenant,omitempty"`  // whom it is about; "": not one tenant
	Details   json.RawMessage `json:"details,omitempty"` // what else the audit is to tell; nil: nothing
}

// Record tells an action in the audit, before it is done, and returns it as it is told there. It makes no version. When
// c.Idempotency says that it is a replay, the action is the first one and must not be done again. Its key is not known
// before [Store.Done], because nobody knows yet whether the action will be done: until then, the same sent again is
// recorded, and to be done, again.
func (s *Store) Record(ctx context.Context, c Change, a Action) (Action, error) {
	if a.Operation == "" {
		return Action{}, &InvalidError{Field: "operation", Problem: "must be given: what was done?"}
	}
	once, replayed := c.Idempotency, false
	c.Idempotency = nil
	told, _, err := write(ctx, s, "record the action "+a.Operation, c, func(tx pgx.Tx) (told Action, err error) {
		var version int64
		if replayed, err = once.replay(ctx, tx, &told, &version); err != nil || replayed {
			return told, err
		}
		_, err = tx.Exec(ctx, `SELECT rate_limiter.record_action($1, $2, $3, $4)`, a.Operation, a.Key, a.Tenant, a.Details)
		return a, err
	})
	if err == nil && once != nil {
		once.Replayed = replayed
	}
	return told, err
}

// Done remembers under the key of c.Idempotency that an action, which was recorded, has been done. Without one there is
// nothing to remember. It tells nothing in the audit.
func (s *Store) Done(ctx context.Context, c Change, a Action) error {
	if c.Idempotency == nil {
		return nil
	}
	_, _, err := write(ctx, s, "remember the action "+a.Operation, c, func(pgx.Tx) (Action, error) { return a, nil })
	return err
}
