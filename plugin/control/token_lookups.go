package control

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// maxAddresses bounds of how many addresses is known how many unknown tokens they sent.
const maxAddresses = 10_000

// lookups bounds how many unknown tokens of one address the database is asked about: so many at once, and as many a
// minute. It is safe for concurrent use.
type lookups struct {
	interval time.Duration // for one more
	burst    time.Duration // for all of them

	mu    sync.Mutex
	until map[netip.Addr]time.Time // when an address has all of its look-ups again
}

// newLookups returns the look-ups of the rates, of which nothing is spent.
func (r Rates) newLookups() *lookups {
	const most = 60
	every := time.Minute / time.Duration(cmp.Or(r.Lookups, most))
	return &lookups{interval: every, burst: every * time.Duration(cmp.Or(r.Lookups, most)), until: map[netip.Addr]time.Time{}}
}

// take spends a look-up of an address, or returns how long it has to wait for one.
func (l *lookups) take(from netip.Addr, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := min(max(l.until[from].Sub(now), 0), l.burst) // also where the clock has stepped back
	if wait = missing + l.interval - l.burst; wait > 0 {
		return wait
	}
	if _, known := l.until[from]; !known && len(l.until) >= maxAddresses {
		makeRoom(l.until, now, maxAddresses)
	}
	l.until[from] = now.Add(missing + l.interval)
	return 0
}

// makeRoom makes room for one more key: it deletes those whose instant has passed, else any.
func makeRoom[K comparable](until map[K]time.Time, now time.Time, most int) {
	maps.DeleteFunc(until, func(_ K, at time.Time) bool { return !at.After(now) })
	for key := range until {
		if len(until) < most {
			return
		}
		delete(until, key)
	}
}

// refund gives a look-up back that found a token.
func (l *lookups) refund(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until, known := l.until[from]; known {
		l.until[from] = until.Add(-l.interval)
	}
}

// lookUpToken returns whose token a secret is. The error is that of [Authenticator]; after ErrNotLookedUp the address has to
// wait. Only look-ups of unknown tokens count: a proxy may send the tokens of many.
func (s *Server) lookUpToken(ctx huma.Context, secret string) (caller Caller, wait time.Duration, err error) {
	from, looked := clientAddress(ctx.RemoteAddr()), false
	caller, err = s.Tokens.Authenticate(ctx.Context(), secret, func() bool {
		if s.limits != nil {
			wait = s.lookups.take(from, s.Now())
		}
		looked = wait == 0
		return looked
	})
	unknown := errors.Is(err, ErrUnknownToken)
	if looked && !unknown && s.limits != nil {
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
