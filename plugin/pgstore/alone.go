package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

const (
	awaiting = "wait for an earlier request"
	// aloneAgain is how long the second of two under one key waits before it tries again.
	aloneAgain = 50 * time.Millisecond
	// aloneEnd is how long the end of a turn may take.
	aloneEnd = time.Second
)

// errCrowded is the end of an action that had no place among those that may be done at a time.
var errCrowded = errors.New("too many actions are being done")

// alone runs do while no other call, in any process, is in do under the same key; i nil: at once. Who waits for that in
// vain, for half of the time that ctx leaves, is an UnderwayError. The turn is a lock of a transaction, so Postgres
// ends it with this process or its connection. One who waits for it holds no connection.
func (s *Store) alone(ctx context.Context, i *Idempotency, do func() error) error {
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
		err := s.ifAlone(ctx, i, do)
		if !errors.As(err, new(*UnderwayError)) && !errors.Is(err, errCrowded) {
			return err
		}
		select {
		case <-time.After(aloneAgain):
		case <-waiting.Done():
			return fail(awaiting, err)
		}
	}
}

// ifAlone runs do, unless somebody is in it under the same key, which is an UnderwayError, or it is errCrowded.
func (s *Store) ifAlone(ctx context.Context, i *Idempotency, do func() error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return fail(awaiting, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), aloneEnd)
		defer cancel()
		_ = tx.Rollback(ctx) // nothing was written; a connection on which it fails is closed, and the lock with it
	}()
	var alone bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, i.lock()).Scan(&alone); err != nil {
		return fail(awaiting, err)
	}
	if !alone {
		return &UnderwayError{i.Key}
	}
	select {
	case s.actions <- struct{}{}:
		defer func() { <-s.actions }()
		return do()
	default:
		return errCrowded
	}
}

// lock is the advisory lock of the database that stands for the key. Two keys of one lock, which are hardly ever found,
// would wait for each other and no more.
func (i *Idempotency) lock() int64 {
	sum := sha256.Sum256([]byte(i.Token + "\x00" + i.Key))
	return int64(binary.BigEndian.Uint64(sum[:]))
}
