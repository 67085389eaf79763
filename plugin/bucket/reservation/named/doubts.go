package named

import (
	"bytes"
	"context"
	"sync"
	"time"
)

// mostDoubts bounds the claims that may arrive in the store later: about 5 MB.
const mostDoubts = 10_000

// doubts holds the claims of this process that the store did not answer, by their entries: they may arrive there later.
// Nothing was charged for them, so a claim that is taken out may be used or deleted. It is safe for concurrent use.
type doubts struct {
	mu      sync.Mutex
	byValue map[string]doubt // each value has a nonce
}

// doubt describes a claim that may arrive later.
type doubt struct {
	key   string
	since time.Time // when the store did not answer
}

// add adds a claim, if there is room.
func (d *doubts) add(key string, value []byte, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byValue) >= mostDoubts {
		return
	}
	if d.byValue == nil {
		d.byValue = map[string]doubt{}
	}
	d.byValue[string(value)] = doubt{key, now}
}

// take takes a claim out, and reports whether it was there.
func (d *doubts) take(value []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.byValue[string(value)]
	delete(d.byValue, string(value))
	return ok
}

// recent drops the claims that are older than an attempt may be, and returns the others as key by value.
func (d *doubts) recent(now time.Time) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := make(map[string]string, len(d.byValue))
	for value, one := range d.byValue {
		if now.Sub(one.since) >= maxAttempt {
			delete(d.byValue, value)
			continue
		}
		keys[value] = one.key
	}
	return keys
}

// releaseDoubts deletes the claims that have arrived in the store after all, so that other processes can use their ids.
// While the records cannot be read it leaves the others for the next call.
func (l *Ledger) releaseDoubts(ctx context.Context) {
	for value, key := range l.doubts.recent(l.options.Now()) {
		present, err := l.options.Records.Get(ctx, key)
		if err != nil {
			return
		}
		if bytes.Equal(present, []byte(value)) && l.doubts.take(present) {
			(&Claim{ledger: l, key: key}).Release(ctx)
		}
	}
}
