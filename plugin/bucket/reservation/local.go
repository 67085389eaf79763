package reservation

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// maxLocal is the number of records that a local has at most: about 100 MB.
const maxLocal = 50_000

// local keeps the entries of named reservations in this process, for buckets that are in this process too. It
// implements Records, and is safe for concurrent use. Make it with newLocal.
type local struct {
	elapsed func() limit.Micros // a monotonic clock
	most    int

	mu      sync.Mutex
	records map[string]localRecord
	next    limit.Micros // when the ended ones are dropped again
}

type localRecord struct {
	value []byte
	ends  limit.Micros
}

func newLocal(elapsed func() limit.Micros, most int) *local {
	return &local{elapsed: elapsed, most: most, records: map[string]localRecord{}}
}

// get returns a record, unless it has ended; nil: there is none. The caller holds the lock.
func (l *local) get(key string) []byte {
	present, ok := l.records[key]
	if ok && present.ends <= l.elapsed() {
		delete(l.records, key)
		return nil
	}
	return present.value
}

// fullError is the error of a call that did nothing.
type fullError struct{}

func (fullError) Error() string    { return "too many reservations" }
func (fullError) MayHaveRun() bool { return false }

// Get implements Records.
func (l *local) Get(_ context.Context, key string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.get(key), nil
}

// Swap implements Records. The error is [ErrFull] if there is no room: a record never makes room for
// another, because its id would be free before its time.
func (l *local) Swap(_ context.Context, key string, old, next []byte, ttl time.Duration) (present []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present = l.get(key)
	switch {
	case !bytes.Equal(present, old):
	case next == nil:
		delete(l.records, key)
	case present == nil && !l.hasRoom():
		return nil, ErrFull
	case ttl == 0:
		l.records[key] = localRecord{next, l.records[key].ends}
	default:
		l.records[key] = localRecord{next, l.elapsed() + limit.Micros(ttl.Microseconds())}
	}
	return present, nil
}

// hasRoom reports whether there is room for another record. The caller holds the lock.
func (l *local) hasRoom() bool {
	if now := l.elapsed(); now >= l.next {
		maps.DeleteFunc(l.records, func(_ string, r localRecord) bool { return r.ends <= now })
		l.next = now + limit.Second
	}
	return len(l.records) < l.most
}
