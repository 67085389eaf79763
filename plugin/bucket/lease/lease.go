package lease

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Shared is the store that all nodes share, from which leases are taken.
type Shared interface {
	// Take is admit.Buckets. A bound whose server did not answer must be left Unanswered, and answers must have another
	// source than Local: what a node admits on its own is no lease.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Refund gives back what Take has spent for the statuses that are Charged with the source Redis, by their receipts,
	// and says in Returned how much the buckets got. It must give back no more than is certain still to be missing from
	// them.
	Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status)
}

// Options are what a Store needs. Now and Live must be set; zero means the default elsewhere.
type Options struct {
	// Now is this node's clock. It must never step, forwards or back, and should not stand while the machine is suspended:
	// windows and leases are timed by it, from what the shared store says of its own.
	Now func() limit.Micros
	// Live answers among how many nodes of a namespace leases are shared out; 0: it is not known well enough, and nothing
	// is leased. So that what is out on lease stays within SharePct while nodes come and go, it must answer 0 unless this
	// node was counted within the last 2 s, and has been counted for 5 s without a gap. A node that is no longer heard of
	// must count for 5 s more. Then every other node has known it for long enough that whatever it took before has ended,
	// and what a node has that others believe dead has ended too. It is asked under locks, so it must not wait.
	Live func(namespace string) int
	// MayLease tells whether a policy may be leased; nil: it is unless its accuracy is exact. It is asked once for each
	// policy, and must not wait for anything. Of those that may, only token buckets and fixed windows are leased, and only
	// where the share of the limit is 10 tokens or more.
	MayLease func(*policy.Policy) bool
	// Observe is told what the shared store has answered when leases were renewed, as if requests had been answered so; nil:
	// nobody is. It must not keep either slice.
	Observe func(bounds []policy.Bound, statuses []decision.Status)

	SharePct     int          // percent of a limit that may be out on lease over all live nodes, at most MaxSharePct; default 2
	DenialMemory limit.Micros // the longest that a refusal is remembered; default 1 s; negative: none is
	MaxEntries   int          // buckets that are leased or whose refusal is remembered, about 700 bytes each; default 65,536
}

const defaultEntries = 1 << 16

// Store leases from a shared store and remembers what that has refused. It is safe for concurrent use. Make it with New;
// requests take by a [View], one for each plugin config. Without [Store.Run] nothing is leased.
type Store struct {
	shared       Shared
	now          func() limit.Micros
	live         func(string) int
	observe      func([]policy.Bound, []decision.Status)
	denialMemory limit.Micros
	perShard     int
	terms        termsCache
	seed         maphash.Seed
	shards       [shardCount]shard

	mu      sync.Mutex // taken after a shard's, never before
	due     []dueRenewal
	returns []pendingReturn
	wake    chan struct{} // there may be something in them

	renewalTime               atomic.Int64 // µs that a renewal is reckoned to last, see learnLasting
	renewals, refunds, failed atomic.Uint64
}

// New makes a store. It does no I/O and starts nothing: see [Store.Run].
func New(shared Shared, o Options) *Store {
	s := &Store{
		shared: shared, now: o.Now, live: o.Live, observe: o.Observe, denialMemory: cmp.Or(o.DenialMemory, limit.Second),
		perShard: max(cmp.Or(o.MaxEntries, defaultEntries)/shardCount, 1),
		terms:    termsCache{leased: o.MayLease, pct: int64(min(cmp.Or(o.SharePct, DefaultSharePct), MaxSharePct))},
		seed:     maphash.MakeSeed(), wake: make(chan struct{}, 1),
	}
	if s.terms.leased == nil {
		s.terms.leased = func(p *policy.Policy) bool { return p.Accuracy == policy.Leased }
	}
	for i := range s.shards {
		s.shards[i].entries = map[uint64]*entry{}
	}
	return s
}

// Stats are a store's numbers; all but Entries, Leases, Out and Lasts since its start.
type Stats struct {
	FromLease   uint64 // bounds that were answered from a lease
	FromStore   uint64 // bounds that the shared store answered to a request
	FromMemory  uint64 // bounds that were refused without asking
	Renewals    uint64 // calls of the shared store for leases
	Failed      uint64 // buckets whose renewal got no answer
	Refunds     uint64 // calls that gave leases back
	Tokens      Tokens
	Entries     int          // buckets that are leased or remembered now
	Leases      int          // buckets of which tokens are out
	Out         int64        // tokens that this node has out on lease, or may soon
	RenewalTime limit.Micros // how long a renewal is reckoned to last, waiting included: twice the usual
}

// Stats are the store's numbers, shard by shard.
func (s *Store) Stats() Stats {
	stats := Stats{Renewals: s.renewals.Load(), Failed: s.failed.Load(), Refunds: s.refunds.Load(), RenewalTime: limit.Micros(s.renewalTime.Load())}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		stats.FromLease += sh.counts.drawn
		stats.FromStore += sh.counts.asked
		stats.FromMemory += sh.counts.remembered
		stats.Entries += len(sh.entries)
		stats.Tokens.add(sh.gone)
		for _, e := range sh.entries {
			stats.Tokens.add(e.ledger.sums)
			if out := e.ledger.outstanding(); out > 0 {
				stats.Out += out
				stats.Leases++
			}
		}
		sh.mu.Unlock()
	}
	return stats
}
