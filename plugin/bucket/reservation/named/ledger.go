package named

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

	mu     sync.Mutex
	doubts []*Claim // that the store did not answer: they may arrive there later
}

// New returns a ledger.
func New(o Options) *Ledger {
	o.Patience = cmp.Or(o.Patience, 2*time.Second)
	return &Ledger{options: o, awaited: awaited{ends: map[string]limit.Micros{}}}
}

const (
	pollInterval  = 20 * time.Millisecond // of an entry that another request is about to change
	finishTimeout = 3 * time.Second       // of a change that was begun, also for a client that has disconnected
)

// finishing returns a context for a change that was begun, and must not end with its request.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
}

// swap replaces a value, if it is the old one, and returns the value that is there then. If the outcome is unknown it
// looks at the value.
func (l *Ledger) swap(ctx context.Context, key string, old, next []byte, ttl time.Duration) (present []byte, err error) {
	present, err = l.options.Records.Swap(ctx, key, old, next, ttl)
	if reservation.MayHaveRun(err) {
		if now, failed := l.options.Records.Get(ctx, key); failed == nil && !bytes.Equal(now, old) {
			return now, nil
		} // else the change may still arrive
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("change the entry of a reservation: %w", err)
	case bytes.Equal(present, old):
		return next, nil
	}
	return present, nil
}

// pause waits before the next look at an entry that another request changes. It returns ErrUnderway if ctx ends.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ErrUnderway
	case <-time.After(pollInterval):
		return nil
	}
}
