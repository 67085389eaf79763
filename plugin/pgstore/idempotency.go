package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
)

// Idempotency makes a write happen once, however often it is sent. The first write under a key is remembered with what
// it returned, in its own transaction, for [KeysKept]. The same write sent again writes nothing and returns the same;
// another write under that key is a KeyReusedError. Writes that fail are not remembered: they may be tried again. Of
// two at once the second waits for the first. A value is for one write.
type Idempotency struct {
	Token   string            // the name of the caller's token: each has keys of its own
	Key     string            // the caller's: 1 to 128 printable characters of ASCII
	Request [sha256.Size]byte // SHA-256 of all that the request asks for: the method, the path, the body

	// Replayed is set by the write: nothing was written, and what it returns is what the first one did.
	Replayed bool
}

// KeysKept is for how long the key of an Idempotency is known.
const KeysKept = 24 * time.Hour

// KeyReusedError is a write under the key of another write. Nothing was written.
type KeyReusedError struct{ Key string }

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("the idempotency key %q was used for another request: choose a new one", e.Key)
}

// answered is what a write has returned.
type answered struct {
	Request []byte
	Answer  []byte
	Version int64
}

// replay reads into answer, a pointer, what the first write under the key returned. It is false when there was none.
func (i *Idempotency) replay(ctx context.Context, q query, answer any, version *int64) (bool, error) {
	if i == nil {
		return false, nil
	}
	first, err := one[answered](ctx, q, "answer", `SELECT request, answer, version FROM rate_limiter.answers
		WHERE token = $1 AND key = $2 AND at >= clock_timestamp() - $3::interval`, i.Token, i.Key, KeysKept)
	if missing := new(NotFoundError); errors.As(err, &missing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if [sha256.Size]byte(first.Request) != i.Request {
		return false, &KeyReusedError{i.Key}
	}
	reflect.ValueOf(answer).Elem().SetZero() // what is absent from the JSON of a list's item would stay as it is
	if err := json.Unmarshal(first.Answer, answer); err != nil {
		return false, fmt.Errorf("read what was answered: %w", err)
	}
	*version = first.Version
	return true, nil
}

// ReplayPolicy is what the first write of a policy under the key of c has returned, without a write; false: there was
// none.
func (s *Store) ReplayPolicy(ctx context.Context, c Change) (p Policy, version int64, replayed bool, err error) {
	replayed, err = c.Idempotency.replay(ctx, s.pool, &p, &version)
	if replayed {
		c.Idempotency.Replayed = true
	}
	return p, version, replayed, fail("look for an earlier write", err)
}

// remember keeps what the write returns. A key that is there already is older than KeysKept.
func (i *Idempotency) remember(ctx context.Context, tx pgx.Tx, answer any, version int64) error {
	if i == nil {
		return nil
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode what is answered: %w", err)
	}
	_, err = tx.Exec(
		ctx,
		`INSERT INTO rate_limiter.answers (token, key, request, answer, version) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (token, key) DO UPDATE SET request = excluded.request, answer = excluded.answer,
			version = excluded.version,
			at = excluded.at`,
		i.Token,
		i.Key,
		i.Request[:],
		text,
		version,
	)
	return err
}
