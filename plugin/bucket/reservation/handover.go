package reservation

import (
	"encoding/gob"
	"fmt"
)

// saved is a reservation on its way to another process.
type saved struct {
	Key    string
	Record []byte
	Late   bool
}

// Save takes out the reservations of limits whose buckets are in this process, and writes them. Those that cannot be
// encoded, and those of names, stay charged.
func (l *Ledger) Save(to *gob.Encoder) error {
	var taken []*reservation
	l.mu.Lock()
	for _, r := range l.byKey {
		if r.keeper.central == nil && !r.named {
			l.remove(r)
			taken = append(taken, r)
		}
	}
	l.mu.Unlock()
	list := make([]saved, 0, len(taken))
	for _, r := range taken {
		if text, err := r.MarshalBinary(); err == nil {
			list = append(list, saved{r.key, text, r.late})
		}
		r.keeper.done()
	}
	if err := to.Encode(list); err != nil {
		return fmt.Errorf("save reservations: %w", err)
	}
	return nil
}

// Load reads the reservations that Save has written, and returns the function that adds them to the ledger. buckets has
// the buckets of the process that has saved them.
func (l *Ledger) Load(from *gob.Decoder, buckets Buckets) (add func(), err error) {
	var list []saved
	if err := from.Decode(&list); err != nil {
		return nil, fmt.Errorf("load reservations: %w", err)
	}
	keeper := l.Keeper(buckets, nil, func() {})
	now, elapsed := l.options.Now(), l.options.Elapsed()
	loaded := make([]*reservation, len(list))
	for i, s := range list {
		record, err := decodeRecord(s.Record, true)
		if err != nil {
			return nil, fmt.Errorf("load reservations: %w", err)
		}
		r := &reservation{Record: record, key: s.Key, keeper: keeper, needs: record.Needs(), late: s.Late}
		r.made = elapsed - max(now-record.Made, 0)
		if r.ends = r.made + r.Timeout; r.late {
			r.ends += r.Timeout
		} else {
			r.slots = record.Slots()
		}
		loaded[i] = r
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, r := range loaded {
			keeper.use()
			l.insert(r)
		}
	}, nil
}
