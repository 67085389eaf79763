package named

import (
	"bytes"
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
)

// DefaultMost is the number of values that a Local has at most, if none is given: about 100 MB.
const DefaultMost = 50_000

// Local keeps records in this process, for buckets that are in this process too. It implements [reservation.Records],
// and is safe for concurrent use. Make it with NewLocal.
type Local struct {
	elapsed func() limit.Micros
	most    int

	mu     sync.Mutex
	values map[string]*localValue
	byEnd  localEnds
}

type localValue struct {
	key   string
	value []byte
	ends  limit.Micros
	place int // in byEnd
}

// NewLocal returns an empty store of at most so many values; 0: DefaultMost. elapsed is a monotonic clock.
func NewLocal(elapsed func() limit.Micros, most int) *Local {
	if most <= 0 {
		most = DefaultMost
	}
	return &Local{elapsed: elapsed, most: most, values: map[string]*localValue{}}
}

// Add implements reservation.Records. The error is [ErrFull] if there is no room: a value never makes room for another,
// because its id would be free before its time.
func (l *Local) Add(_ context.Context, key string, value []byte, ttl time.Duration) (present []byte, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.find(key); v != nil {
		return v.value, nil
	}
	if len(l.values) >= l.most {
		return nil, fullError{}
	}
	v := &localValue{key: key, value: value, ends: l.elapsed() + limit.Micros(ttl.Microseconds())}
	l.values[key] = v
	heap.Push(&l.byEnd, v)
	return nil, nil
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
	if v := l.find(key); v != nil {
		return v.value, nil
	}
	return nil, nil
}

// Swap implements reservation.Records.
func (l *Local) Swap(_ context.Context, key string, old, next []byte) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.find(key)
	if v == nil || !bytes.Equal(v.value, old) {
		return false, nil
	}
	v.value = next
	return true, nil
}

// Take implements reservation.Records.
func (l *Local) Take(_ context.Context, key string) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.find(key)
	if v == nil {
		return nil, nil
	}
	l.remove(v)
	return v.value, nil
}

// find drops what has ended, and returns the value of a key; nil: there is none. The caller holds the lock.
func (l *Local) find(key string) *localValue {
	for now := l.elapsed(); len(l.byEnd) > 0 && l.byEnd[0].ends <= now; {
		l.remove(l.byEnd[0])
	}
	return l.values[key]
}

// remove removes a value. The caller holds the lock.
func (l *Local) remove(v *localValue) {
	delete(l.values, v.key)
	heap.Remove(&l.byEnd, v.place)
}

// localEnds is a heap of values, the one that ends first at its top.
type localEnds []*localValue

func (e localEnds) Len() int           { return len(e) }
func (e localEnds) Less(i, j int) bool { return e[i].ends < e[j].ends }
func (e localEnds) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].place, e[j].place = i, j
}

// Push implements heap.Interface.
func (e *localEnds) Push(x any) {
	v := x.(*localValue)
	v.place = len(*e)
	*e = append(*e, v)
}

// Pop implements heap.Interface.
func (e *localEnds) Pop() any {
	last := len(*e) - 1
	v := (*e)[last]
	*e = slices.Delete(*e, last, last+1)
	return v
}
