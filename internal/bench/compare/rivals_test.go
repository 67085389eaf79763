package compare

import (
	"context"
	"hash/maphash"
	"strconv"
	"sync"
	"testing"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// decide decides one request of a tenant. It belongs to one caller.
type decide func(tenant int) (admitted bool, err error)

// limiter decides the requests of a job.
type limiter struct {
	caller func() decide
	calls  func(testing.TB) uint64 // the number of calls of the shared store so far; nil: there is none
}

// entrant is a kind of limiter.
type entrant struct {
	name string
	open func(testing.TB, *job) limiter
	// single means that it has no tenants, and does jobs of one tenant only.
	single bool
	// even means that it spaces requests by its rate and has no burst.
	even bool
}

// entrants lists the limiters of the comparison. The libraries decide one bound in a call, so a request of four bounds
// is four calls. They do not spend all or none: the tokens of the first bound are spent even if the last one denies.
// They keep buckets in this process only.
var entrants = []entrant{
	{name: "lease", open: ours(newLease)},
	{name: "lease-over-memory", open: ours(newLeaseOverMemory)},
	{name: "memory", open: ours(newMemory)},
	{name: "redis", open: ours(newRedis)},
	{name: "x-time-rate", open: oneLimiter, single: true},
	{name: "x-time-rate-map", open: perGroup(func(q quota) func() bool {
		return rate.NewLimiter(q.perSecond(), int(q.tokens)).Allow
	})},
	{name: "go-limiter", open: goLimiter},
	{name: "failsafe-smooth", even: true, open: perGroup(func(q quota) func() bool {
		return ratelimiter.NewSmooth[any](uint(q.tokens), q.window).TryAcquirePermit
	})},
	{name: "failsafe-bursty", open: perGroup(func(q quota) func() bool {
		return ratelimiter.NewBursty[any](uint(q.tokens), q.window).TryAcquirePermit
	})},
}

func (q quota) perSecond() rate.Limit { return rate.Limit(float64(q.tokens) / q.window.Seconds()) }

// oneLimiter uses golang.org/x/time/rate directly: one token bucket for each bound, for all tenants. It does not report
// the remaining tokens or the reset.
func oneLimiter(_ testing.TB, j *job) limiter {
	limiters := make([]*rate.Limiter, len(j.bounds))
	for i := range limiters {
		limiters[i] = rate.NewLimiter(j.perSecond(), int(j.tokens))
	}
	return limiter{caller: func() decide {
		return func(int) (bool, error) {
			for _, l := range limiters {
				if !l.Allow() {
					return false, nil
				}
			}
			return true, nil
		}
	}}
}

// goLimiter uses github.com/sethvargo/go-limiter, a map of buckets that are filled at the end of each interval. It
// reports the remaining tokens and the end of the interval. The keys are built beforehand here; its users build one for
// each call.
func goLimiter(tb testing.TB, j *job) limiter {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(j.tokens), Interval: j.window})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			tb.Errorf("close go-limiter's store: %v", err)
		}
	})
	keys := make([][]string, len(j.tenants))
	for tenant := range keys {
		keys[tenant] = make([]string, len(j.bounds))
		for i := range j.bounds {
			keys[tenant][i] = strconv.Itoa(i) + ":" + j.groupOf(i, tenant)
		}
	}
	return limiter{caller: func() decide {
		return func(tenant int) (bool, error) {
			for _, key := range keys[tenant] {
				if _, _, _, admitted, err := store.Take(context.Background(), key); err != nil || !admitted {
					return false, err
				}
			}
			return true, nil
		}
	}}
}

// limiterKey identifies the limiter of one bound for one group.
type limiterKey struct {
	group string
	bound int
}

// limiters is a sharded map of single limiters, as users of such a library write it. It never drops a limiter, which
// users have to.
type limiters struct {
	open   func() func() bool
	seed   maphash.Seed
	shards [64]struct {
		sync.Mutex
		byGroup map[limiterKey]func() bool
		_       [48]byte // keeps the next shard's lock off this cache line
	}
}

func (l *limiters) allows(key limiterKey) bool {
	shard := &l.shards[maphash.Comparable(l.seed, key)%uint64(len(l.shards))]
	shard.Lock()
	allow, ok := shard.byGroup[key]
	if !ok {
		allow = l.open()
		shard.byGroup[key] = allow
	}
	shard.Unlock()
	return allow()
}

// perGroup keeps a limiter of a library for each group and bound. golang.org/x/time/rate is a token bucket. The smooth
// limiter of failsafe-go spaces requests evenly, and its bursty one counts them in periods. None of them reports the
// remaining tokens or the reset.
func perGroup(open func(quota) func() bool) func(testing.TB, *job) limiter {
	return func(_ testing.TB, j *job) limiter {
		l := &limiters{open: func() func() bool { return open(j.quota) }, seed: maphash.MakeSeed()}
		for i := range l.shards {
			l.shards[i].byGroup = map[limiterKey]func() bool{}
		}
		return limiter{caller: func() decide {
			return func(tenant int) (bool, error) {
				for i := range j.bounds {
					if !l.allows(limiterKey{j.groupOf(i, tenant), i}) {
						return false, nil
					}
				}
				return true, nil
			}
		}}
	}
}
