package reservation

import (
	"context"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Bounds of the ends of requests that wait for their central store.
const (
	maxParked      = 10_000
	maxParkedBytes = 32 << 20
	maxParkedTime  = 600 * limit.Second
)

// parkedOverhead is the size of a parked end beside its texts, in bytes.
const parkedOverhead = 512

// addKeeper adds an open keeper, and lets what waits for its store be settled.
func (t *Table) addKeeper(k *Keeper) {
	t.mu.Lock()
	t.central[k.central.Fingerprint] = append(t.central[k.central.Fingerprint], k)
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
	t.central[store] = slices.DeleteFunc(t.central[store], func(other *Keeper) bool { return other == k })
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

// unknownShare is the part of the room, 1 in so many, that the ends of one store have which never was open. Who forges
// tokens of such a store leaves room for others.
const unknownShare = 4

// size returns the room that an end takes, in bytes.
func (end *requestEnd) size() int { return end.answer.Size() + parkedOverhead }

// park keeps the end of a request until its store can be reached, and reports whether there is room.
func (t *Table) park(end *requestEnd) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	fits := func(ends, bytes, share int) bool {
		return ends < maxParked/share && bytes+end.size() <= maxParkedBytes/share
	}
	if _, known := t.central[end.store]; !known {
		ends, bytes := 0, 0
		for _, other := range t.parked {
			if other.store == end.store {
				ends, bytes = ends+1, bytes+other.size()
			}
		}
		if !fits(ends, bytes, unknownShare) {
			return false
		}
	}
	if !fits(len(t.parked), t.parkedBytes, 1) {
		return false
	}
	t.parked, t.parkedBytes = append(t.parked, end), t.parkedBytes+end.size()
	return true
}

// abandon gives up the end of a request: its reservation stays charged.
func (t *Table) abandon(end *requestEnd) {
	t.count(&t.stats.Abandoned)
	if end.own != nil {
		t.reportUnsettled(end.own, Lost)
	}
	if end.keeper != nil {
		end.keeper.done()
	}
}

// retry settles the parked ends of requests. It calls a store that does not answer once only.
func (t *Table) retry(ctx context.Context) {
	t.mu.Lock()
	waiting := slices.Clone(t.parked)
	t.mu.Unlock()
	unreachable := map[string]bool{} // by the fingerprint of the store
	for _, end := range waiting {
		if ctx.Err() == nil && !unreachable[end.store] {
			won, err := t.finish(ctx, end)
			if err != nil {
				t.options.Log.Warn("settling a request after its log phase failed", "error", err)
			}
			end.over, unreachable[end.store] = won.isFinal(), won == claimUnreachable
		}
		if !end.over && t.options.Elapsed()-end.since >= maxParkedTime {
			end.over = true
			t.abandon(end)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parked = slices.DeleteFunc(t.parked, func(end *requestEnd) bool {
		if end.over {
			t.parkedBytes -= end.size()
		}
		return end.over
	})
}
