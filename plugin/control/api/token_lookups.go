package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// maxAddresses bounds how many addresses are remembered.
const maxAddresses = 10_000

// lookups limits how many unknown tokens of one address are looked up in the database, by a burst and a rate a minute.
// It is safe for concurrent use.
type lookups struct {
	interval time.Duration // until one more lookup is free
	burst    time.Duration // until all are free

	mu    sync.Mutex
	until map[netip.Addr]time.Time // when an address has all of its lookups again
}

// newLookups returns the limit of lookups, with none spent.
func (r Rates) newLookups() *lookups {
	const most = 60
	every := time.Minute / time.Duration(cmp.Or(r.Lookups, most))
	return &lookups{
		interval: every,
		burst:    every * time.Duration(cmp.Or(r.Lookups, most)),
		until:    map[netip.Addr]time.Time{},
	}
}

// take spends a lookup of an address, or returns how long the address has to wait.
func (l *lookups) take(from netip.Addr, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := min(max(l.until[from].Sub(now), 0), l.burst) // also if the clock has stepped back
	if wait = missing + l.interval - l.burst; wait > 0 {
		return wait
	}
	if _, ok := l.until[from]; !ok && len(l.until) >= maxAddresses {
		makeRoom(l.until, now, maxAddresses)
	}
	l.until[from] = now.Add(missing + l.interval)
	return 0
}

// makeRoom makes room for one more key: it deletes keys whose time has passed, then any.
func makeRoom[K comparable](until map[K]time.Time, now time.Time, most int) {
	maps.DeleteFunc(until, func(_ K, at time.Time) bool { return !at.After(now) })
	for key := range until {
		if len(until) < most {
			return
		}
		delete(until, key)
	}
}

// refund returns a lookup that found a token.
func (l *lookups) refund(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until, ok := l.until[from]; ok {
		l.until[from] = until.Add(-l.interval)
	}
}

// lookUpToken returns the caller whose token a secret is. The error is that of [Authenticator]; after ErrNotLookedUp
// the address has to wait. Only lookups of unknown tokens count, because a proxy may send many valid ones.
func (s *Server) lookUpToken(
	ctx context.Context, address, secret string,
) (caller Caller, wait time.Duration, err error) {
	from, looked := clientAddress(address), false
	caller, err = s.Tokens.Authenticate(ctx, secret, func() bool {
		if s.limits != nil && address != "" {
			wait = s.lookups.take(from, s.Now())
		}
		looked = wait == 0
		return looked
	})
	unknown := errors.Is(err, ErrUnknownToken)
	if looked && !unknown && s.limits != nil && address != "" {
		s.lookups.refund(from)
	}
	result := ""
	switch {
	case errors.Is(err, ErrNotLookedUp):
		result = lookupDenied
	case looked && unknown:
		result = lookupUnknown
	case unknown:
		result = lookupRemembered
	case looked && err != nil:
		result = lookupFailed
	case looked:
		result = lookupFound
	default:
		return caller, wait, err
	}
	s.metrics.lookups.WithLabelValues(result).Inc()
	return caller, wait, err
}
