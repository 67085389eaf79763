package rows

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Action describes what an operator did outside the tables, such as a reset of the buckets of a tenant.
type Action struct {
	Operation string          `json:"operation"`         // in one word, such as reset
	Key       string          `json:"key,omitempty"`     // names its object
	Tenant    string          `json:"tenant,omitempty"`  // the tenant that it concerns; "": not one tenant
	Details   json.RawMessage `json:"details,omitempty"` // more for the audit; nil: nothing
}

const (
	// actionTime bounds an action once it is recorded.
	actionTime = 10 * time.Second
	// keyTime bounds what is stored of its key after it.
	keyTime = 3 * time.Second
)

// Do records an action in the audit, then runs do. If recording fails, do does not run. Once recorded, do goes on after
// the end of ctx, for at most 10 seconds. Do makes no version. It returns the error of do unwrapped; the audit then has
// an action that may not have been done.
//
// Under c.Idempotency do runs once, and *answer is stored when it has succeeded. A replay runs nothing and sets *answer
// to what was stored. A second call during the first waits for it, at most half of the time until the deadline of ctx,
// and then returns an UnderwayError. An action that was not done is recorded again and done when it is sent again: at
// once if do failed, and after underwayTime if the process died. If do succeeded and its answer cannot be stored, Do
// returns an UnkeptKeyError.
func (s *DB) Do(ctx context.Context, c Change, a Action, answer any, do func(context.Context) error) error {
	if err := s.claimAction(ctx, c, a, answer); err != nil || c.Idempotency != nil && c.Idempotency.Replayed {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	acting, cancel := context.WithTimeout(ctx, actionTime)
	err := do(acting)
	cancel()
	ctx, cancel = context.WithTimeout(ctx, keyTime)
	defer cancel()
	if err != nil {
		s.freeKey(ctx, c.Idempotency)
		return err
	}
	return s.storeAnswer(ctx, c, a, answer)
}

// claimAction records an action, and waits while another call does one under its key.
func (s *DB) claimAction(ctx context.Context, c Change, a Action, answer any) error {
	waiting := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	for {
		err := s.recordAction(ctx, c, a, answer)
		if !is[*UnderwayError](err) {
			return err
		}
		select {
		case <-time.After(keyPoll):
		case <-waiting.Done():
			return err
		}
	}
}

// recordAction records an action in the audit and stores that it is under way, unless it was done under the key before.
func (s *DB) recordAction(ctx context.Context, c Change, a Action, answer any) error {
	once, replayed := c.Idempotency, false
	c.Idempotency = nil // its answer is stored only after the action
	_, _, err := write(ctx, s, "record the action "+a.Operation, c, func(tx pgx.Tx) (none noResult, err error) {
		if replayed, err = once.replay(ctx, tx, answer, new(int64)); err == nil && !replayed {
			err = once.remember(ctx, tx, nil, 0)
		}
		if err == nil && !replayed {
			_, err = tx.Exec(ctx, `SELECT rate_limiter.record_action($1, $2, $3, $4)`, a.Operation, a.Key, a.Tenant, a.Details)
		}
		return none, err
	})
	if err == nil && once != nil {
		once.Replayed = replayed
	}
	return err
}

// freeKey lets an action that has failed be sent again at once. If that fails, it can be after underwayTime.
func (s *DB) freeKey(ctx context.Context, i *Idempotency) {
	if i != nil {
		_, _ = s.pool.Exec(ctx, `UPDATE rate_limiter.answers SET at = '-infinity' WHERE token = $1 AND key = $2`,
			i.Token, i.Key)
	}
}

func (s *DB) storeAnswer(ctx context.Context, c Change, a Action, answer any) error {
	once := c.Idempotency
	if once == nil {
		return nil
	}
	c.Idempotency = nil
	if _, _, err := write(ctx, s, "store the answer of "+a.Operation, c, func(tx pgx.Tx) (none noResult, err error) {
		return none, once.remember(ctx, tx, answer, 0)
	}); err != nil {
		return &UnkeptKeyError{err}
	}
	return nil
}

// UnkeptKeyError reports an action that was done without its answer being stored: sent again later, it is done again.
type UnkeptKeyError struct{ Err error }

func (e *UnkeptKeyError) Error() string {
	return "the action was done, but its idempotency key was not stored: " + e.Err.Error()
}

// Unwrap returns why the answer was not stored.
func (e *UnkeptKeyError) Unwrap() error { return e.Err }

// UnderwayError reports that the first action under a key is still running. Nothing was done or recorded.
type UnderwayError struct{ Key string }

func (e *UnderwayError) Error() string {
	return fmt.Sprintf("the first request with the idempotency key %q is still in progress: retry in a moment", e.Key)
}

const (
	// keyPoll is the time between two tries to claim a key.
	keyPoll = 100 * time.Millisecond
	// underwayTime is the age at which an action without an answer counts as not done: its process has died.
	underwayTime = actionTime + 5*time.Second
)

// Idempotency makes a write happen once, however often it is sent. The first write under a key stores its result in its
// own transaction, for [KeysKept]. The same write sent again writes nothing and returns that result. Another write
// under the same key is a KeyReusedError. A failed write stores nothing and may be sent again. A second write during
// the first waits for it. A value is for one write.
type Idempotency struct {
	Token   string            // the name of the caller's token; each token has its own keys
	Key     string            // chosen by the caller: 1 to 128 printable characters of ASCII
	Request [sha256.Size]byte // SHA-256 of the method, the path and the body of the request

	// Replayed is set by the write if it wrote nothing and returned the result of the first write.
	Replayed bool
}

// KeysKept is the time for which the key of an Idempotency is stored.
const KeysKept = 24 * time.Hour

// KeyReusedError reports a write under the key of another write. Nothing was written.
type KeyReusedError struct{ Key string }

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("the idempotency key %q was used for another request: choose a new one", e.Key)
}

// storedAnswer is the stored result of a write; null: an action is under way.
type storedAnswer struct {
	Request []byte
	Answer  []byte
	Version int64
}

// replay sets *answer and *version to the result of the first write under the key, and reports whether there was one.
func (i *Idempotency) replay(ctx context.Context, q querier, answer any, version *int64) (bool, error) {
	if i == nil {
		return false, nil
	}
	first, err := one[storedAnswer](ctx, q, "answer", `SELECT request, answer, version FROM rate_limiter.answers
		WHERE token = $1 AND key = $2
		AND at >= clock_timestamp() - CASE answer::text WHEN 'null' THEN $3::interval ELSE $4 END`,
		i.Token, i.Key, underwayTime, KeysKept)
	switch {
	case IsMissing(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if [sha256.Size]byte(first.Request) != i.Request {
		return false, &KeyReusedError{i.Key}
	}
	if string(first.Answer) == "null" {
		return false, &UnderwayError{i.Key}
	}
	reflect.ValueOf(answer).Elem().SetZero() // otherwise fields that the JSON omits would keep their values
	if err := json.Unmarshal(first.Answer, answer); err != nil {
		return false, fmt.Errorf("decode the stored answer: %w", err)
	}
	*version = first.Version
	return true, nil
}

// ReplayPolicy returns the result of the first write of a policy under the key of c, and reports whether there was one.
// It writes nothing.
func (s *DB) ReplayPolicy(ctx context.Context, c Change) (p Policy, version int64, replayed bool, err error) {
	replayed, err = c.Idempotency.replay(ctx, s.pool, &p, &version)
	if replayed {
		c.Idempotency.Replayed = true
	}
	return p, version, replayed, fail("read the answer of an earlier write", err)
}

// remember stores the result of the write. It overwrites a key that is older than KeysKept.
func (i *Idempotency) remember(ctx context.Context, tx pgx.Tx, answer any, version int64) error {
	if i == nil {
		return nil
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO rate_limiter.answers (token, key, request, answer, version)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (token, key) DO UPDATE SET request = excluded.request, answer = excluded.answer,
			version = excluded.version,
			at = excluded.at`, i.Token, i.Key, i.Request[:], text, version)
	return err
}

// EmptiedBucket describes a bucket before a reset has emptied it. It belongs to the tenant, unless it has a user,
// credential or address.
type EmptiedBucket struct {
	Policy      string    `json:"policy"`
	Row         int64     `json:"policy_id,omitempty"` // the id of the policy; 0: it is in the plugin's config
	Endpoint    string    `json:"endpoint,omitempty"`
	User        string    `json:"user,omitempty"`
	Credential  string    `json:"credential,omitempty"`
	IP          string    `json:"ip,omitempty"`
	Description string    `json:"description"` // the limit in words
	Used        int64     `json:"used"`
	Remaining   int64     `json:"remaining"`
	Reset       time.Time `json:"reset"` // when it would have been full again, or its window would have ended
}

// ResetOf returns the action that records a reset of buckets of a tenant; "" for buckets of an address. statuses holds
// the status of each bound before it.
func ResetOf(tenant string, bounds []policy.Bound, statuses []decision.Status) (Action, error) {
	buckets := make([]EmptiedBucket, len(bounds))
	for i := range bounds {
		b, status := &bounds[i], &statuses[i]
		buckets[i] = EmptiedBucket{
			Policy: b.Policy.Name, Row: b.Policy.Row, Endpoint: b.Key.Endpoint, Description: b.Policy.Describe(),
			Used: status.Used, Remaining: status.Remaining, Reset: time.UnixMicro(int64(status.Reset)).UTC(),
		}
		switch subject := b.Key.Subject; b.Key.Kind {
		case policy.KindUser:
			buckets[i].User = subject
		case policy.KindCredential:
			buckets[i].Credential = subject
		case policy.KindIP:
			buckets[i].IP = subject
		default:
			if b.Key.Group == policy.ByIP {
				buckets[i].IP = b.Key.GroupID
			}
		}
	}
	details, err := json.Marshal(map[string]any{"buckets": buckets})
	if err != nil {
		return Action{}, fmt.Errorf("encode a reset: %w", err)
	}
	return Action{Operation: "reset", Key: "buckets", Tenant: tenant, Details: details}, nil
}
