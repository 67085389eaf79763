package named

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Errors of Claim and Settle, beside [ActualError]. Any other error means that the records could not be read or
// written, and that nothing was charged or settled.
var (
	ErrUnknown  = errors.New("there is no reservation with this id")
	ErrReused   = errors.New("the id was used for another request")
	ErrUnderway = errors.New("the first request with this id is still in progress")
	// ErrUncertain means that a process ended while it decided about the check: it is unknown whether it charged.
	ErrUncertain = errors.New("the outcome of the first request with this id is unknown")
	// ErrFull means that there is no room for another record.
	ErrFull = errors.New("too many reservations")
)

// Options configures a Ledger. Records, Buckets, Now and Log must be set.
type Options struct {
	Records  reservation.Records
	Own      bool                 // the records and the buckets are in this process alone
	Buckets  reservation.Buckets  // those from which checks have taken
	Observer reservation.Observer // nil: none
	Now      func() time.Time
	Log      *slog.Logger
	Patience time.Duration // to wait for another request with the same id; 0: two seconds
}

// Ledger keeps reservations under ids that callers choose. It is safe for concurrent use. Make it with New; Run reports
// those that time out.
type Ledger struct {
	options Options
	awaited awaited
	doubts  doubts
}

// New returns a ledger.
func New(o Options) *Ledger {
	return &Ledger{options: o, awaited: awaited{ends: map[string]limit.Micros{}}}
}

const (
	defaultPatience = 2 * time.Second
	pollInterval    = 20 * time.Millisecond // of an entry that another request is about to change
	finishTimeout   = 3 * time.Second       // of a change that was begun, also for a client that has disconnected
)

// finishing returns a context for a change that was begun, and must not end with its request.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}

// swap replaces a value, and reports whether it did. If the outcome is unknown it looks at the value.
func (l *Ledger) swap(ctx context.Context, key string, old, next []byte) (bool, error) {
	ok, err := l.options.Records.Swap(ctx, key, old, next)
	switch {
	case err == nil:
		return ok, nil
	case !reservation.MayHaveRun(err):
		return false, fmt.Errorf("change the entry of a reservation: %w", err)
	}
	present, failed := l.options.Records.Get(ctx, key)
	switch {
	case failed != nil, bytes.Equal(present, old): // the change may still arrive
		return false, fmt.Errorf("change the entry of a reservation: %w", err)
	}
	return bytes.Equal(present, next), nil
}

// add stores a value, and returns the one that is present already; nil: next was stored. If the outcome is unknown it
// looks at the value.
func (l *Ledger) add(ctx context.Context, key string, next []byte, ttl time.Duration) (present []byte, err error) {
	present, err = l.options.Records.Add(ctx, key, next, ttl)
	switch {
	case err == nil:
		return present, nil
	case !reservation.MayHaveRun(err):
		return nil, fmt.Errorf("make the entry of a reservation: %w", err)
	}
	present, failed := l.options.Records.Get(ctx, key)
	switch {
	case failed != nil, present == nil: // the entry may still arrive
		l.doubts.add(key, next, l.options.Now())
		return nil, fmt.Errorf("make the entry of a reservation: %w", err)
	case bytes.Equal(present, next):
		return nil, nil
	}
	return present, nil
}

// waiter waits while another request changes an entry.
type waiter struct {
	ctx   context.Context
	until time.Time
}

func (l *Ledger) newWaiter(ctx context.Context) waiter {
	return waiter{ctx, time.Now().Add(cmp.Or(l.options.Patience, defaultPatience))}
}

// wait pauses before the next look at the entry. It returns ErrUnderway if the patience or the request is over.
func (w *waiter) wait() error {
	if !time.Now().Before(w.until) {
		return ErrUnderway
	}
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-w.ctx.Done():
		return ErrUnderway
	case <-timer.C:
		return nil
	}
}
