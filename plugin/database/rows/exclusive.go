package rows

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

const (
	// waitingForKey names the operation in errors.
	waitingForKey = "wait for an earlier request"
	// keyPoll is the time between two tries to lock a key.
	keyPoll = 50 * time.Millisecond
	// unlockTime bounds the release of a key.
	unlockTime = time.Second
)

// errTooManyActions reports that as many actions run as may run at a time.
var errTooManyActions = errors.New("too many actions are running")

// runExclusive runs do while no other call, in any process, runs one under the same key. It waits for at most half of
// the time until the deadline of ctx, and then returns an UnderwayError or errTooManyActions. A nil i has no key, so do
// runs at once. The lock belongs to a transaction, so Postgres releases it when this process or its connection ends.
// Waiting holds no connection.
func (s *DB) runExclusive(ctx context.Context, i *Idempotency, do func() error) error {
	if i == nil {
		return do()
	}
	waiting := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	for {
		err := s.tryExclusive(ctx, i, do)
		if !errors.As(err, new(*UnderwayError)) && !errors.Is(err, errTooManyActions) {
			return err
		}
		select {
		case <-time.After(keyPoll):
		case <-waiting.Done():
			return fail(waitingForKey, err)
		}
	}
}

// tryExclusive runs do, unless another call runs under the same key (UnderwayError) or too many run
// (errTooManyActions).
func (s *DB) tryExclusive(ctx context.Context, i *Idempotency, do func() error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return fail(waitingForKey, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTime)
		defer cancel()
		_ = tx.Rollback(ctx) // nothing was written; if it fails, the connection is closed, which releases the lock
	}()
	var locked bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, i.lockNumber()).Scan(&locked); err != nil {
		return fail(waitingForKey, err)
	}
	if !locked {
		return &UnderwayError{i.Key}
	}
	select {
	case s.actions <- struct{}{}:
		defer func() { <-s.actions }()
		return do()
	default:
		return errTooManyActions
	}
}

// lockNumber returns the number of the advisory lock of the key. Two keys with the same number, which is very unlikely,
// would only wait for each other.
func (i *Idempotency) lockNumber() int64 {
	sum := sha256.Sum256([]byte(i.Token + "\x00" + i.Key))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
