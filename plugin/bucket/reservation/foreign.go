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
func (l *Ledger) addKeeper(k *Keeper) {
	l.mu.Lock()
	l.central[k.central.Fingerprint()] = append(l.central[k.central.Fingerprint()], k)
	l.mu.Unlock()
	select {
	case l.opened <- struct{}{}:
	default: // Run has a signal already
	}
}

// removeKeeper removes a keeper.
func (l *Ledger) removeKeeper(k *Keeper) {
	l.mu.Lock()
	defer l.mu.Unlock()
	store := k.central.Fingerprint()
	l.central[store] = slices.DeleteFunc(l.central[store], func(other *Keeper) bool { return other == k })
}

// keeperOf returns a keeper for a central store, or nil. The caller must call its done.
func (l *Ledger) keeperOf(store string) *Keeper {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.central[store] {
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
func (l *Ledger) park(end *requestEnd) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	fits := func(ends, bytes, share int) bool {
		return ends < maxParked/share && bytes+end.size() <= maxParkedBytes/share
	}
	if _, known := l.central[end.store]; !known {
		ends, bytes := 0, 0
		for _, other := range l.parked {
			if other.store == end.store {
				ends, bytes = ends+1, bytes+other.size()
			}
		}
		if !fits(ends, bytes, unknownShare) {
			return false
		}
	}
	if !fits(len(l.parked), l.parkedBytes, 1) {
		return false
	}
	l.parked, l.parkedBytes = append(l.parked, end), l.parkedBytes+end.size()
	return true
}

// abandon gives up the end of a request: its reservation stays charged.
func (l *Ledger) abandon(end *requestEnd) {
	l.count(&l.stats.Abandoned)
	if end.own != nil {
		l.reportUnsettled(end.own, Lost)
	}
	if end.keeper != nil {
		end.keeper.done()
	}
}

// retry settles the parked ends of requests. It calls a store that does not answer once only.
func (l *Ledger) retry(ctx context.Context) {
	l.mu.Lock()
	waiting := slices.Clone(l.parked)
	l.mu.Unlock()
	unreachable := map[string]bool{} // by the fingerprint of the store
	for _, end := range waiting {
		if ctx.Err() == nil && !unreachable[end.store] {
			won, err := l.finish(ctx, end)
			if err != nil {
				l.options.Log.Warn("settling a request after its log phase failed", "error", err)
			}
			end.over, unreachable[end.store] = won.isFinal(), won == claimUnreachable
		}
		if !end.over && l.options.Elapsed()-end.since >= maxParkedTime {
			end.over = true
			l.abandon(end)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parked = slices.DeleteFunc(l.parked, func(end *requestEnd) bool {
		if end.over {
			l.parkedBytes -= end.size()
		}
		return end.over
	})
}
