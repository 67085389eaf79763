// Package outage decorates a store that all nodes share with what happens while it is away.
//
// A [Breaker] for each server keeps requests from waiting for a dead or slow one, and a bulkhead bounds how many wait
// at all. What the shared store does not answer is decided by each policy's fail mode: open and closed are package
// decision's to apply; for local, a [View] asks buckets of this process, with this node's share of the limit. What was
// admitted without the shared store is written into a ledger and charged to it once, when it is back. A heartbeat
// counts the nodes among which limits are shared out.
//
// What does not live here: how servers are talked to and what their errors mean (package redis), the buckets of
// this process (package memory), and the answer to the client (packages decision and response).
package outage

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// Shared is a store that all nodes share, and that may be away, as a whole or in part.
type Shared interface {
	// Take is admit.Buckets, but for bounds whose server did not answer: their statuses must have the source Unanswered,
	// a Failure, and as Wait how long (at least) it is not worth asking again. If an answered bound denies, nothing that
	// answered may stay spent. An error means misuse; outages are not errors.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Refund gives back what Take has spent for the statuses that are Charged with the source Redis, and clears Charged.
	// Best effort, and at most once.
	Refund(ctx context.Context, bounds []policy.Bound, statuses []decision.Status)
	// Beat tells that node lives, for ttl from now, among the nodes of namespace, and answers how many do, itself
	// included.
	Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error)
	// Leave ends what Beat told.
	Leave(ctx context.Context, namespace, node string) error
	// Probe asks each server that may be asked and has not answered lately whether it lives, so that an outage ends
	// without traffic.
	Probe(ctx context.Context)
}

// Fallback keeps buckets in this process. It waits for nothing.
type Fallback interface {
	// Take is admit.Buckets.
	Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// Ask answers as Take does and spends nothing.
	Ask(bounds []policy.Bound, statuses []decision.Status) error
	// Refund gives back what Take has spent for the statuses that are Charged, and clears Charged.
	Refund(bounds []policy.Bound, statuses []decision.Status) error
	// Seed raises what is spent of a bucket to tokens, spent at the instant at under l. A bucket of which as much is
	// spent already is left alone.
	Seed(key policy.Key, l *limit.Limit, tokens int64, at limit.Micros)
}

// Options are what a Store needs. Name, Log, Now and Breakers must be set; zero means the default elsewhere.
type Options struct {
	// Name is the shared store's, as logs and metrics call it. Its breakers must be made for the same name.
	Name string
	// Second is the name of the store that keeps a part of its buckets apart, with breakers of its own; "": there is none.
	Second   string
	Log      *slog.Logger
	Now      func() limit.Micros // the clock of the fallback
	Breakers *Breakers
	Away     func() bool // whether this process answers no requests, and so is no live node; nil: it always does

	Waiting          int // requests of this process that may wait for the shared store at once; default 4096
	WaitingPerTenant int // of one tenant; default 256
	Sightings        int // buckets whose last known usage is remembered, 33 bytes each; default 100,000
	Ledger           int // buckets that can be charged after an outage, about 400 bytes each; default 100,000
}

const (
	defaultWaiting, defaultWaitingPerTenant = 4096, 256
	defaultSightings, defaultLedger         = 100_000, 100_000
)

// Store is a shared store with its fallback. It is safe for concurrent use. Make it with New; requests take by a
// [View], one for each plugin config.
type Store struct {
	shared    Shared
	fallback  Fallback
	names     []string // the shared store's, and its second's
	node      string
	log       *slog.Logger
	now       func() limit.Micros
	breakers  *Breakers
	bulkhead  *bulkhead
	sightings *sightings
	ledger    *ledger
	drafts    sync.Pool // of *draft
	away      func() bool

	activations [failures]atomic.Uint64

	mu         sync.Mutex
	namespaces map[string]*namespace

	arrived   chan struct{} // a namespace is new and has not been told of
	chargeNow chan struct{} // there may be something to charge
	recovered atomic.Bool   // a server has come back since the last report
}

// failures is how many failures there are, none included.
const failures = int(decision.WrongType) + 1

// New makes a store. It does no I/O and starts nothing: see [Store.Run].
func New(shared Shared, fallback Fallback, o Options) *Store {
	names, log := []string{o.Name}, o.Log.With("store", o.Name)
	if o.Second != "" {
		names, log = append(names, o.Second), log.With("second_store", o.Second)
	}
	return &Store{
		shared: shared, fallback: fallback, names: names, node: rand.Text(),
		log: log, now: o.Now, breakers: o.Breakers, away: o.Away,
		bulkhead:  newBulkhead(or(o.Waiting, defaultWaiting), or(o.WaitingPerTenant, defaultWaitingPerTenant)),
		sightings: newSightings(or(o.Sightings, defaultSightings)),
		ledger:    newLedger(or(o.Ledger, defaultLedger)),
		drafts:    sync.Pool{New: func() any { return new(draft) }},

		namespaces: map[string]*namespace{},
		arrived:    make(chan struct{}, 1),
		chargeNow:  make(chan struct{}, 1),
	}
}

func or(n, otherwise int) int {
	if n > 0 {
		return n
	}
	return otherwise
}

// Stats are a store's numbers, since its start where they count events.
type Stats struct {
	Policies    map[string]Tally            // by policy name; what names beyond the first thousand did is under Other
	Activations map[decision.Failure]uint64 // requests that fell back, by the first failure among their bounds
	Waiting     int64                       // requests that wait for the shared store now
	Buckets     int                         // buckets of which something is still to be charged
	Pending     int64                       // tokens admitted unverified, neither charged nor written off yet
	Live        map[string]int              // nodes that were last known to live, by namespace; 0: not known yet
	Last        Report                      // the last outage that was reconciled; its zero value: none was
}

// Stats are the store's numbers.
func (s *Store) Stats() Stats {
	stats := Stats{
		Activations: map[decision.Failure]uint64{}, Waiting: s.bulkhead.waiting.Load(), Live: map[string]int{},
	}
	for failure := range s.activations {
		if n := s.activations[failure].Load(); n > 0 {
			stats.Activations[decision.Failure(failure)] = n
		}
	}
	s.ledger.stats(&stats)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, ns := range s.namespaces {
		stats.Live[name] = int(ns.live.Load())
	}
	return stats
}

// Degraded reports whether any server of the shared store or of its second is away.
func (s *Store) Degraded() bool {
	for _, name := range s.names {
		if degraded, _ := s.breakers.Degraded(name); degraded {
			return true
		}
	}
	return false
}
