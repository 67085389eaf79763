package named

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/reservation"
)

// Errors of a Ledger. Where another one is returned, the records could not be read or written,
// and nothing was charged or settled.
var (
	ErrUnknown  = errors.New("there is no reservation with this id")
	ErrOther    = errors.New("the id was used for another request")
	ErrUnderway = errors.New("the first request with this id is still in progress")
	// ErrUncertain means that the process that decided ended before it answered: it is unknown whether it charged.
	ErrUncertain = errors.New("the outcome of the first request with this id is unknown")
	// ErrFull means that there is no room for another record.
	ErrFull = errors.New("too many reservations")
)

// Options configures a Ledger. Records, Buckets, Now and Log must be set.
type Options struct {
	Records  reservation.Records
	Own      bool                 // the records, and the buckets, are those of this process
	Buckets  reservation.Buckets  // that checks have charged
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
}

// New returns a ledger.
func New(o Options) *Ledger { return &Ledger{options: o} }

const (
	patience = 2 * time.Second
	pause    = 20 * time.Millisecond // between two looks at what another request does
	finish   = 3 * time.Second       // to finish what was begun, also for a client that has disconnected
)

// finishing returns a context for what must be finished once it was begun.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finish)
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
	case failed != nil, bytes.Equal(present, old): // it may still arrive
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
	case failed != nil, present == nil: // it may still arrive
		return nil, fmt.Errorf("make the entry of a reservation: %w", err)
	case bytes.Equal(present, next):
		return nil, nil
	}
	return present, nil
}

// waiter waits for an attempt of another request.
type waiter struct {
	ctx   context.Context
	until time.Time
}

func (l *Ledger) newWaiter(ctx context.Context) waiter {
	return waiter{ctx, time.Now().Add(cmp.Or(l.options.Patience, patience))}
}

// wait waits a moment. The error is ErrUnderway if the time is up.
func (w *waiter) wait() error {
	if !time.Now().Before(w.until) {
		return ErrUnderway
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-w.ctx.Done():
		return ErrUnderway
	case <-timer.C:
		return nil
	}
}
