package compare

import (
	"context"
	"hash/maphash"
	"strconv"
	"sync"
	"testing"

	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"
)

// decide decides one request of a tenant. It belongs to one caller.
type decide func(tenant int) (admitted bool, err error)

// limiter does a job.
type limiter struct {
	caller func() decide
	calls  func(testing.TB) uint64 // how often the store that nodes share was called so far; nil: there is none
}

// entrant is a way to do jobs.
type entrant struct {
	name string
	open func(testing.TB, *job) limiter
	// single: it has no tenants, and does jobs of one tenant only.
	single bool
	// even: it spaces requests by its rate, and has no burst.
	even bool
}

// entrants holds the limiters that are compared. The libraries decide one bound in a call, so a request of four bounds
// is four calls: they are not all or nothing (what is spent from the first is gone when the last denies), and the
// memory of each is this process's alone.
var entrants = []entrant{
	{name: "lease", open: ours(newLease)},
	{name: "lease-over-memory", open: ours(newLeaseOverMemory)},
	{name: "memory", open: ours(newMemory)},
	{name: "redis", open: ours(newRedis)},
	{name: "x-time-rate", open: oneLimiter, single: true},
	{name: "x-time-rate-map", open: perGroup(func(q quota) func() bool { return rate.NewLimiter(q.perSecond(), int(q.tokens)).Allow })},
	{name: "go-limiter", open: goLimiter},
	{name: "failsafe-smooth", even: true, open: perGroup(func(q quota) func() bool {
		return ratelimiter.NewSmooth[any](uint(q.tokens), q.window).TryAcquirePermit
	})},
	{name: "failsafe-bursty", open: perGroup(func(q quota) func() bool {
		return ratelimiter.NewBursty[any](uint(q.tokens), q.window).TryAcquirePermit
	})},
}

func (q quota) perSecond() rate.Limit { return rate.Limit(float64(q.tokens) / q.window.Seconds()) }

// oneLimiter is golang.org/x/time/rate as it comes: one token bucket for each bound, for all tenants. It reports
// whether a request is admitted, but not what remains or when it is full again.
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

// goLimiter is github.com/sethvargo/go-limiter, a map by string of buckets that are filled at the end of each interval.
// It answers with what remains and when the interval ends. The key of every bound is made beforehand here; its users
// make one for each call.
func goLimiter(tb testing.TB, j *job) limiter {
	store, err := memorystore.New(&memorystore.Config{Tokens: uint64(j.tokens), Interval: j.window})
	if err != nil {
		tb.Fatal(err)
	}
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

// limiters are what a user of a library with single limiters writes around it: a map of them in shards, each with a
// lock. Nothing is ever dropped here, though a user would have to.
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

// perGroup keeps a limiter of a library for each group and bound. golang.org/x/time/rate is a token bucket;
// failsafe-go's smooth limiter spaces requests evenly and its bursty one counts them in periods. All three report
// whether a request is admitted, and not what remains or when it is full again.
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
