package redis

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// recordScript keeps records.
var recordScript = newScript(assemble("record", nil))

// Records keeps records of a few hundred bytes beside the buckets of a namespace, where all processes find them by a
// key. In a cluster each record has a slot of its own. A call is one script, by the connection, the time limits and the
// gate of all calls; its errors are of type [Error]. It is safe for concurrent use.
type Records struct {
	store       *Store
	namespace   string
	fingerprint string
}

// Records returns the records of a namespace.
func (s *Store) Records(namespace string) *Records {
	text, err := json.Marshal([]string{s.location, "", namespace}) // "" as in release 0.1.0, so that nodes agree
	if err != nil {
		panic(fmt.Sprintf("redis: a location cannot be encoded: %v", err)) // it has strings only
	}
	sum := sha256.Sum256(text)
	return &Records{store: s, namespace: namespace, fingerprint: hex.EncodeToString(sum[:8])}
}

// Fingerprint identifies the data: equal ones are of one namespace in Redis at the same addresses, in whatever process.
// It is 16 characters long, and derived from no user name and no password.
func (r *Records) Fingerprint() string { return r.fingerprint }

// Add keeps a record under a key for ttl. If there is one already, it changes nothing and returns that one. A record
// is not empty, and begins with no zero byte.
func (r *Records) Add(ctx context.Context, key string, record []byte, ttl time.Duration) (present []byte, err error) {
	lasts := max(ttl.Milliseconds(), 1)
	return r.run(ctx, "add", key, record, strconv.AppendInt(nil, lasts, 10))
}

// Get returns the record of a key, or nil.
func (r *Records) Get(ctx context.Context, key string) ([]byte, error) { return r.run(ctx, "get", key) }

// Swap replaces the record of a key, if it is the old one, and reports whether it did. The record expires as before.
func (r *Records) Swap(ctx context.Context, key string, old, next []byte) (bool, error) {
	present, err := r.run(ctx, "swap", key, old, next)
	return err == nil && present != nil && bytes.Equal(present, old), err
}

// Take deletes the record of a key and returns it, or nil. Of all callers one at most gets it.
func (r *Records) Take(ctx context.Context, key string) ([]byte, error) {
	return r.run(ctx, "take", key)
}

// claimed is how long a claimed record is kept.
const claimed = 30 * time.Second

// Claim claims the record of a key and returns it. For 30 seconds it returns the record to the same claimant again, and
// taken to all others. It returns neither where there is no record and no claim. A claimant is a text without zero
// bytes. To the other methods a claimed record is gone, but Add changes nothing there.
func (r *Records) Claim(ctx context.Context, key, claimant string) (record []byte, taken bool, err error) {
	return r.claim(ctx, "claim", key, claimant)
}

// ClaimOwn claims the record of a key for a claimant that has it, and reports whether it did, as Claim does. What is
// kept for 30 seconds is the claim alone.
func (r *Records) ClaimOwn(ctx context.Context, key, claimant string) (won, taken bool, err error) {
	record, taken, err := r.claim(ctx, "own", key, claimant)
	return record != nil, taken, err
}

func (r *Records) claim(ctx context.Context, action, key, claimant string) (record []byte, taken bool, err error) {
	mark := []byte("\x00" + claimant + "\x00")
	record, err = r.run(ctx, action, key, mark, strconv.AppendInt(nil, claimed.Milliseconds(), 10))
	if err != nil || record == nil {
		return nil, false, err
	}
	if len(record) == 0 {
		return nil, true, nil
	}
	return record, false, nil
}

// run runs an action on the record of a key, and returns the record that was there before.
func (r *Records) run(ctx context.Context, action, key string, args ...[]byte) ([]byte, error) {
	c := newCall([]string{string(appendRecord(nil, r.namespace, key))}, action)
	c.args = append(c.args, args...)
	err := r.store.transport.Run(ctx, recordScript, c)
	if err != nil {
		return nil, fmt.Errorf("%s a record: %w", action, err)
	}
	reply := elements{left: c.reply}
	record := reply.text()
	if err := reply.end(); err != nil {
		return nil, fmt.Errorf("%s a record: %w", action, &Error{err: err})
	}
	return record, nil
}
