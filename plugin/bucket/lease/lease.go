package lease

import (
	"cmp"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Nodes returns the number of nodes of a namespace that share leases; 0 means that it is not known well enough, and
// nothing is leased. To keep what is out on lease within SharePct while nodes come and go, it must return 0 unless this
// node was counted within the last 2 s and has been counted for 5 s without a gap, and must count a node for 5 s after
// its last report. Then every other node has counted this one for longer than any of its earlier leases lasts, and the
// leases of a node that others no longer count have ended. It is called under locks and must not block.
type Nodes func(namespace string) int

// Policies says which policies may be leased.
type Policies interface {
	// MayLease reports whether a policy may be leased. It is called once for each policy, and must not block.
	MayLease(*policy.Policy) bool
}

// Observer receives the answers of the central store to renewals, in the form of answers to requests. It must not keep
// either slice.
type Observer func(bounds []policy.Bound, statuses []decision.Status)

// Options configures Leases. Now and Nodes must be set; zero means the default elsewhere.
type Options struct {
	// Now is this node's monotonic clock. It must never step, and should go on while the machine is suspended: it times
	// windows and leases, from the times that the central store reports.
	Now   func() limit.Micros
	Nodes Nodes
	// Policies says which policies may be leased; nil: those whose accuracy is not exact. Only token buckets and fixed
	// windows are leased, and only if the share of the limit is 10 tokens or more.
	Policies Policies
	Observer Observer // nil: none

	SharePct     int          // percent of a limit that may be out on lease, at most MaxSharePct; default 2
	DenialMemory limit.Micros // the longest that a denial is remembered; default 1 s; negative: none is
	MaxEntries   int          // buckets with a lease or a remembered denial, about 700 bytes each; default 65,536

	// Hash hashes keys, for simulations that repeat: no order of work depends on anything else. nil: hashes are random,
	// so that no client can choose names that meet in one place.
	Hash func(policy.Key) uint64
}

const defaultEntries = 1 << 16

// Leases holds what a node has leased from a central store and remembers its denials. It is safe for concurrent use.
// Make it with New; requests take through a [Store], one for each plugin config. Without [Leases.Run] nothing is
// leased.
type Leases struct {
	central      store.Store
	now          func() limit.Micros
	nodes        Nodes
	observer     Observer // nil: none
	denialMemory limit.Micros
	perShard     int
	terms        termsCache
	seed         maphash.Seed
	fixedHash    func(policy.Key) uint64 // Options.Hash
	shards       [shardCount]shard

	sweeping sweepProgress // used by Step alone

	mu      sync.Mutex // taken after a shard's, never before
	due     []dueRenewal
	returns []pendingReturn
	wake    chan struct{} // signals that due or returns may have entries

	renewalTime               atomic.Int64 // µs that a renewal is expected to take, see recordRenewalTime
	renewals, refunds, failed atomic.Uint64
}

// New returns a store that leases from central, which all nodes share. It must not answer with the source Local: what a
// node admits on its own cannot be leased. New does no I/O and starts nothing: see [Leases.Run].
func New(central store.Store, o Options) *Leases {
	s := &Leases{
		central: central, now: o.Now, nodes: o.Nodes, observer: o.Observer,
		denialMemory: cmp.Or(o.DenialMemory, limit.Second),
		perShard:     max(cmp.Or(o.MaxEntries, defaultEntries)/shardCount, 1),
		terms: termsCache{
			policies: o.Policies, pct: int64(min(cmp.Or(o.SharePct, DefaultSharePct), MaxSharePct)),
		},
		seed: maphash.MakeSeed(), fixedHash: o.Hash, wake: make(chan struct{}, 1),
	}
	if s.terms.policies == nil {
		s.terms.policies = leasedPolicies{}
	}
	for i := range s.shards {
		s.shards[i].entries = map[uint64]*entry{}
	}
	return s
}

// leasedPolicies leases the policies whose accuracy is not exact.
type leasedPolicies struct{}

// MayLease implements Policies.
func (leasedPolicies) MayLease(p *policy.Policy) bool { return p.Accuracy == policy.Leased }

// Stats counts what the leases did: since its start, except Entries, Leases, Out and RenewalTime.
type Stats struct {
	FromLease   uint64       `metric:"answered_limits_total by=lease"`  // bounds answered from a lease
	FromStore   uint64       `metric:"answered_limits_total by=redis"`  // bounds answered by the central store
	FromMemory  uint64       `metric:"answered_limits_total by=memory"` // bounds denied from memory
	Renewals    uint64       `metric:"lease_renewals_total"`            // calls of the central store to take leases
	Failed      uint64       `metric:"lease_failures_total"`            // buckets whose renewal was not answered
	Refunds     uint64       `metric:"lease_refunds_total"`             // calls of the central store to release leases
	Tokens      Tokens       `metric:""`
	Entries     int          // buckets with a lease or a remembered denial now
	Leases      int          `metric:"leases"`           // buckets with tokens out on lease
	Out         int64        `metric:"lease_tokens_out"` // tokens out on lease to this node, renewals under way included
	RenewalTime limit.Micros // expected duration of a renewal, waiting included: twice the usual
}

// Stats returns the counts of the leases, read shard by shard.
func (s *Leases) Stats() Stats {
	stats := Stats{
		Renewals:    s.renewals.Load(),
		Failed:      s.failed.Load(),
		Refunds:     s.refunds.Load(),
		RenewalTime: limit.Micros(s.renewalTime.Load()),
	}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		stats.FromLease += sh.counts.drawn
		stats.FromStore += sh.counts.called
		stats.FromMemory += sh.counts.remembered
		stats.Entries += len(sh.entries)
		stats.Tokens.add(sh.gone)
		for _, e := range sh.entries {
			stats.Tokens.add(e.holdings.sums)
			if out := e.holdings.outstanding(); out > 0 {
				stats.Out += out
				stats.Leases++
			}
		}
		sh.mu.Unlock()
	}
	return stats
}
