package named

import (
	"bytes"
	"context"
	"maps"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// DefaultMost is the number of records that a Local has at most, if none is given: about 100 MB.
const DefaultMost = 50_000

// Local keeps records in this process, for buckets that are in this process too. It implements [reservation.Records],
// and is safe for concurrent use. Make it with NewLocal.
type Local struct {
	elapsed func() limit.Micros
	most    int

	mu      sync.Mutex
	records map[string]localRecord
	next    limit.Micros // when the ended ones are dropped again
}

type localRecord struct {
	value []byte
	ends  limit.Micros
}

// NewLocal returns an empty store of at most so many records; 0: DefaultMost. elapsed is a monotonic clock.
func NewLocal(elapsed func() limit.Micros, most int) *Local {
	if most <= 0 {
		most = DefaultMost
	}
	return &Local{elapsed: elapsed, most: most, records: map[string]localRecord{}}
}

// get returns a record, unless it has ended; nil: there is none. The caller holds the lock.
func (l *Local) get(key string) []byte {
	present, ok := l.records[key]
	if ok && present.ends <= l.elapsed() {
		delete(l.records, key)
		return nil
	}
	return present.value
}

// fullError is ErrFull, as an error of a call that did nothing.
type fullError struct{}

func (fullError) Error() string        { return ErrFull.Error() }
func (fullError) Is(target error) bool { return target == ErrFull }
func (fullError) MayHaveRun() bool     { return false }

// Get implements reservation.Records.
func (l *Local) Get(_ context.Context, key string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.get(key), nil
}

// Swap implements reservation.Records. The error is [ErrFull] if there is no room: a record never makes room for
// another, because its id would be free before its time.
func (l *Local) Swap(_ context.Context, key string, old, next []byte, ttl time.Duration) (present []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present = l.get(key)
	switch {
	case !bytes.Equal(present, old):
	case next == nil:
		delete(l.records, key)
	case present == nil && !l.hasRoom():
		return nil, fullError{}
	case ttl == 0:
		l.records[key] = localRecord{next, l.records[key].ends}
	default:
		l.records[key] = localRecord{next, l.elapsed() + limit.Micros(ttl.Microseconds())}
	}
	return present, nil
}

// hasRoom reports whether there is room for another record. The caller holds the lock.
func (l *Local) hasRoom() bool {
	if now := l.elapsed(); now >= l.next {
		maps.DeleteFunc(l.records, func(_ string, r localRecord) bool { return r.ends <= now })
		l.next = now + limit.Second
	}
	return len(l.records) < l.most
}
