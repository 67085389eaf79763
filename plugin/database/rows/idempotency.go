package rows

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
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

// storedAnswer is the stored result of a write.
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
		WHERE token = $1 AND key = $2 AND at >= clock_timestamp() - $3::interval`, i.Token, i.Key, KeysKept)
	switch {
	case IsMissing(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if [sha256.Size]byte(first.Request) != i.Request {
		return false, &KeyReusedError{i.Key}
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
