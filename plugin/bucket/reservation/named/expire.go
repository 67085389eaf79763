package named

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const (
	// mostAwaited bounds the reservations whose timeouts this process reports: about 20 MB.
	mostAwaited = 100_000
	// expiryPause is the time between two looks for reservations that have timed out.
	expiryPause = time.Second
)

// awaited holds the reservations that this process has made, by key, with the ends of their timeouts: until it settles
// or reports them. It is safe for concurrent use.
type awaited struct {
	mu   sync.Mutex
	ends map[string]limit.Micros
}

// add awaits the timeout of a reservation, if there is room.
func (a *awaited) add(key string, ends limit.Micros) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.ends) < mostAwaited {
		a.ends[key] = ends
	}
}

func (a *awaited) remove(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.ends, key)
}

// due returns the keys of the reservations that have timed out.
func (a *awaited) due(now limit.Micros) (keys []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, ends := range a.ends {
		if ends <= now {
			keys = append(keys, key)
		}
	}
	return keys
}

// Awaited returns how many reservations of this process have neither been settled by it nor timed out.
func (l *Ledger) Awaited() int {
	l.awaited.mu.Lock()
	defer l.awaited.mu.Unlock()
	return len(l.awaited.ends)
}

// Run reports the reservations of this process that time out, and frees the ids of checks that the store answered too
// late, until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	ticker := time.NewTicker(expiryPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			l.Expire(ctx)
			l.releaseDoubts(ctx)
		}
	}
}

// Expire reports the reservations of this process that have timed out. Their entries stay, for a late settlement. If
// the records cannot be read or written, it leaves what it has not reported for the next call.
func (l *Ledger) Expire(ctx context.Context) {
	for _, key := range l.awaited.due(limit.Micros(l.options.Now().UnixMicro())) {
		if ctx.Err() != nil {
			return
		}
		if err := l.expire(ctx, key); err != nil {
			l.options.Log.Debug("reporting a reservation that timed out failed: it is tried again", "error", err)
			return
		}
		l.awaited.remove(key)
	}
}

// expire reports a reservation, unless it has been settled or reported. It logs an entry that it cannot decode. An
// error means that the records could not be read or written.
func (l *Ledger) expire(ctx context.Context, key string) error {
	value, err := l.options.Records.Get(ctx, key)
	if err != nil || value == nil {
		return err
	}
	e, record, err := l.decodeReserved(value)
	if err != nil {
		l.options.Log.Warn("decoding a reservation that timed out failed: it is not counted as timed out", "error", err)
		return nil
	}
	if record == nil || e.TimedOut {
		return nil
	}
	e.TimedOut = true
	next, err := e.encode()
	if err != nil {
		return err
	}
	present, err := l.swap(ctx, key, value, next, 0)
	if err == nil && bytes.Equal(present, next) {
		record.ReportUnsettled(l.options.Observer, reservation.TimedOut, micros(e.Timeout))
	}
	return err
}

// decodeReserved returns an entry and what its limits have reserved; a nil record: it is settled, or no limit settles.
func (l *Ledger) decodeReserved(value []byte) (*entry, *reservation.Record, error) {
	e, err := decode(value)
	if err != nil || e.State != reserved {
		return e, nil, err
	}
	record, err := l.decodeRecord(e)
	return e, record, err
}
