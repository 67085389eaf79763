package redis

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

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

// Get implements reservation.Records.
func (r *Records) Get(ctx context.Context, key string) ([]byte, error) { return r.run(ctx, "get", key) }

// Swap implements reservation.Records. A record is not empty.
func (r *Records) Swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) ([]byte, error) {
	return r.run(ctx, "swap", key, old, next, strconv.AppendInt(nil, ttl.Milliseconds(), 10))
}

// run runs an action on the record of a key, and returns the record that was there before, or nil.
func (r *Records) run(ctx context.Context, action, key string, args ...[]byte) ([]byte, error) {
	c := newCall([]string{string(appendRecord(nil, r.namespace, key))}, action)
	c.args = append(c.args, args...)
	var record []byte
	err := r.store.evaluate(ctx, recordScript, c, func(reply *elements) { record = reply.text() })
	if err != nil {
		return nil, fmt.Errorf("%s a record: %w", action, err)
	}
	return record, nil
}
