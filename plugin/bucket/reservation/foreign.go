package reservation

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
)

// Bounds of the ends of requests that wait for their central store.
const (
	maxParked      = 10_000
	maxParkedBytes = 32 << 20
	maxParkedTime  = 600 * limit.Second
)

// parkedOverhead is the size of a parked end beside its texts, in bytes.
const parkedOverhead = 512

// requestEnd holds the end of a request, as its log phase reported it. It is parked while its central store is out of
// reach, or not opened by this process yet.
type requestEnd struct {
	token
	own      *reservation // nil: another process has made it
	claimant string       // of the record, the same in each try
	answer   settle.Answer
	at       limit.Micros // when it was read, by the wall clock
	since    limit.Micros // when it was parked, by Options.Elapsed
	size     int

	missing  bool // its record was looked for once, and may have been on its way
	doubtful bool // a claim by this process may have been made
}

// settleForeign settles a reservation of another process.
func (t *Table) settleForeign(ctx context.Context, parsed *token, source Source) error {
	t.mu.Lock()
	t.reached++
	t.mu.Unlock()
	end := &requestEnd{token: *parsed, claimant: rand.Text(), at: t.options.Now()}
	if err := source.Read(ctx, parsed.needs, &end.answer); err != nil {
		return fmt.Errorf("read what a request of another process used: its reservation stays charged: %w", err)
	}
	done, err := t.finishForeign(ctx, end)
	if !done && !t.park(end) {
		t.abandon(end)
	}
	return err
}

// finishForeign claims and settles a reservation of another process. It reports false if that must be tried again: the
// store is not open, or out of reach, or the record may still be on its way there.
func (t *Table) finishForeign(ctx context.Context, end *requestEnd) (done bool, err error) {
	k := t.keeperOf(end.store)
	if k == nil {
		return false, nil
	}
	defer k.done()
	text, taken, err := k.central.Records.Claim(ctx, end.id.key(), end.claimant)
	switch {
	case err != nil:
		return false, nil // the next try has the same claimant, so it gets what this one got
	case text == nil && !taken && !end.missing:
		end.missing = true
		return false, nil
	case text == nil:
		t.countUnknown()
		return true, nil
	}
	r := new(Record)
	if err := r.UnmarshalBinary(text); err != nil {
		t.abandoned.Add(1)
		return true, fmt.Errorf("settle a request of another process: its reservation stays charged: %w", err)
	}
	all := r.Measure(&end.answer, r.Late(end.at))
	err = r.Settle(ctx, k.buckets, all)
	r.ReportSettled(t.options.Observer, all, end.at-r.Made)
	return true, err
}

// addKeeper adds an open keeper, and lets what waits for its store be settled.
func (t *Table) addKeeper(k *Keeper) {
	t.mu.Lock()
	t.central[k.central.Fingerprint] = append(t.central[k.central.Fingerprint], k)
	t.known[k.central.Fingerprint] = true
	t.mu.Unlock()
	select {
	case t.opened <- struct{}{}:
	default: // Run has a signal already
	}
}

// removeKeeper removes a keeper.
func (t *Table) removeKeeper(k *Keeper) {
	t.mu.Lock()
	defer t.mu.Unlock()
	store := k.central.Fingerprint
	open := slices.DeleteFunc(t.central[store], func(other *Keeper) bool { return other == k })
	if t.central[store] = open; len(open) == 0 {
		delete(t.central, store)
	}
}

// keeperOf returns a keeper for a central store, or nil. The caller must call its done.
func (t *Table) keeperOf(store string) *Keeper {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.central[store] {
		if k.use() {
			return k
		}
	}
	return nil
}

// room is what that the parked ends of one store take.
type room struct{ ends, bytes int }

// unknownShare is the part of the room, 1 in so many, that the ends of one store have which never was open. Who forges
// tokens of such a store leaves room for others.
const unknownShare = 4

// park keeps the end of a request until its store can be reached, and reports whether there is room.
func (t *Table) park(end *requestEnd) bool {
	end.since, end.size = t.options.Elapsed(), end.answer.Size()+parkedOverhead
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.parked) >= maxParked || t.parkedBytes+end.size > maxParkedBytes {
		return false
	}
	if end.own == nil && !t.known[end.store] {
		s := t.parkedFor[end.store]
		s.ends, s.bytes = s.ends+1, s.bytes+end.size
		if s.ends > maxParked/unknownShare || s.bytes > maxParkedBytes/unknownShare {
			return false
		}
		t.parkedFor[end.store] = s
	}
	t.parked, t.parkedBytes = append(t.parked, end), t.parkedBytes+end.size
	return true
}

// abandon gives up the end of a request: its reservation stays charged.
func (t *Table) abandon(end *requestEnd) {
	t.abandoned.Add(1)
	if r := end.own; r != nil {
		t.giveUp(r, Lost)
		r.keeper.done()
	}
}

// retry settles the parked ends of requests. It calls a store that does not answer once only.
func (t *Table) retry(ctx context.Context) {
	t.mu.Lock()
	waiting := t.parked
	t.parked, t.parkedBytes = nil, 0
	clear(t.parkedFor)
	t.mu.Unlock()
	unreachable := map[string]bool{} // by the fingerprint of the store
	for _, end := range waiting {
		store, finish := end.store, t.finishForeign
		if end.own != nil {
			store, finish = end.own.keeper.central.Fingerprint, t.finishOwn
		}
		if ctx.Err() == nil && !unreachable[store] {
			missing := end.missing
			done, err := finish(ctx, end)
			if err != nil && t.options.Log != nil {
				t.options.Log.Warn("settling a request after its log phase failed", "error", err)
			}
			if done {
				continue
			}
			unreachable[store] = end.missing == missing // a store that misses a record has answered
		}
		if t.options.Elapsed()-end.since >= maxParkedTime || !t.parkAgain(end) {
			t.abandon(end)
		}
	}
}

// parkAgain parks an end again, and keeps the instant since which it is parked.
func (t *Table) parkAgain(end *requestEnd) bool {
	since := end.since
	ok := t.park(end)
	end.since = since
	return ok
}

// retryEvery is the time between two calls of retry.
const retryEvery = time.Second

// runRetries calls retry every second, and when a store is opened, until ctx ends.
func (t *Table) runRetries(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-t.opened:
		}
		t.retry(ctx)
	}
}
