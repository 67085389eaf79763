// Package outage decorates a store that all nodes share with what happens while it is unavailable.
//
// A [Breaker] for each server keeps requests from waiting for a dead or slow one, and a bulkhead bounds how many wait
// at all. The breaker is ours: it must judge abandoned calls and stalls of this process, by a clock of the caller. Each
// policy's fail mode decides what the central store does not answer: package decision applies open and closed; for
// local, a [Store] takes from buckets of this process, with this node's share of the limit. Debts record what was
// admitted without the central store, and charges it once when the store is back. A heartbeat counts the nodes that
// share limits.
//
// Elsewhere: calls of servers and their errors (package redis), the buckets of this process (package memory), and the
// response to the client (packages decision and response).
package outage

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Central is a store that all nodes share, and that may be unavailable, as a whole or in part.
type Central interface {
	// Store decides the bounds whose servers answer. The statuses of the others must have as Wait the least time after
	// which another call is worthwhile. If an answered bound denies, nothing that was answered may stay spent. Settle must
	// leave statuses alone whose source is not Redis.
	store.Store
	// Beat reports that node is alive, for ttl from now, among the nodes of namespace. It returns the number of live
	// nodes, itself included.
	Beat(ctx context.Context, namespace, node string, ttl time.Duration) (live int, err error)
	// Leave ends what Beat reported.
	Leave(ctx context.Context, namespace, node string) error
	// Probe checks each server that may be called and has not answered lately, so that an outage ends without traffic.
	Probe(ctx context.Context)
}

// Fallback keeps buckets in this process. It never blocks.
type Fallback interface {
	store.Store
	// Seed raises what is spent of a bucket to tokens, spent at the instant at under l. It leaves a bucket alone of which
	// as much is spent already.
	Seed(key policy.Key, l *limit.Limit, tokens int64, at limit.Micros)
}

// Options configures a Guard. Name, Log, Now and Breakers must be set; zero means the default elsewhere.
type Options struct {
	// Name is the name of the central store in logs and metrics. Its breakers must be made for the same name.
	Name     string
	Log      *slog.Logger
	Now      func() limit.Micros // the clock of the fallback
	Breakers *Breakers
	// Superseded reports whether another process answers the requests of this one, which so is no live node. It must not
	// block. nil: none ever does.
	Superseded func() bool

	MaxSightings int // buckets whose last known usage is kept, 33 bytes each; default 100,000

	// Hash hashes keys, for simulations that repeat: the order of what is done after an outage depends on nothing else.
	// nil: hashes are random.
	Hash func(policy.Key) uint64
}

const (
	// maxWaiting bounds the requests of this process that wait for the central store at once, and maxWaitingPerTenant the
	// requests of one tenant.
	maxWaiting, maxWaitingPerTenant = 4096, 256
	// maxDebts bounds the buckets that can be charged after an outage, about 400 bytes each.
	maxDebts         = 100_000
	defaultSightings = 100_000
)

// Guard is a central store with its fallback. It is safe for concurrent use. Make it with New; requests take through a
// [Store], one for each plugin config.
type Guard struct {
	central   Central
	fallback  Fallback
	name      string // of the central store
	node      string
	log       *slog.Logger
	now       func() limit.Micros
	breakers  *Breakers
	clock     func() time.Time // of the breakers
	bulkhead  *bulkhead
	sightings *sightings
	debts     *debts

	superseded func() bool // nil: never

	activations [failures]atomic.Uint64

	mu         sync.Mutex
	namespaces map[string]*members

	unreported atomic.Bool // a namespace is new and has no heartbeat yet
	beatNow    chan struct{}
	nextBeat   time.Time // used by stepBeat alone, like the next two
	beats      int
	recoveries uint64 // of breakers, as it was read last

	chargeWanted atomic.Bool // debts may be charged
	chargeNow    chan struct{}
	recovered    atomic.Bool // a server has come back since the last report
	charging     charging    // used by stepCharge alone
}

// failures is the number of values of decision.Failure, NoFailure included.
const failures = int(decision.WrongType) + 1

// New returns a guard. It does no I/O and starts nothing: see [Guard.Run].
func New(central Central, fallback Fallback, o Options) *Guard {
	seen := newSightings(cmp.Or(o.MaxSightings, defaultSightings), o.Hash)
	return &Guard{
		central:   central,
		fallback:  fallback,
		name:      o.Name,
		node:      rand.Text(),
		log:       o.Log.With("store", o.Name),
		now:       o.Now,
		breakers:  o.Breakers,
		clock:     o.Breakers.now,
		bulkhead:  newBulkhead(maxWaiting, maxWaitingPerTenant),
		sightings: seen,
		debts:     newDebts(maxDebts, o.Breakers.now, seen.hash),

		superseded: o.Superseded,

		namespaces: map[string]*members{},
		beatNow:    make(chan struct{}, 1),
		chargeNow:  make(chan struct{}, 1),
	}
}

// Stats counts what a guard did, since its start where they count events.
type Stats struct {
	Policies    map[string]Tally            `metric:""` // by name; beyond the first thousand as "other"
	Activations map[decision.Failure]uint64 // requests that fell back, by the first failure among their bounds
	Waiting     int64                       `metric:"waiting_requests"` // requests that wait for the central store now
	Buckets     int                         // buckets with debts
	Pending     int64                       // tokens admitted unverified, neither charged nor written off yet
	Live        map[string]int              `metric:"live_nodes namespace" merge:"max"` // nodes by namespace; 0: unknown
	Last        Report                      // the last outage that was reconciled; its zero value: none was
}

// Stats returns the guard's counts.
func (s *Guard) Stats() Stats {
	stats := Stats{
		Activations: map[decision.Failure]uint64{}, Waiting: s.bulkhead.waiting.Load(), Live: map[string]int{},
	}
	for failure := range s.activations {
		if n := s.activations[failure].Load(); n > 0 {
			stats.Activations[decision.Failure(failure)] = n
		}
	}
	s.debts.stats(&stats)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, ns := range s.namespaces {
		stats.Live[name] = int(ns.live.Load())
	}
	return stats
}

// Degraded reports whether any server of the central store is unavailable.
func (s *Guard) Degraded() bool {
	degraded, _, _ := s.breakers.Degraded(s.name)
	return degraded
}

// Peek implements store.Store: it shows what fail modes decide where the central store does not answer. A bucket of
// this process may then start with the usage that the central store last reported, as it does for a Take.
func (v *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek at", bounds, statuses); err != nil {
		return err
	}
	if err := v.store.askCentral(ctx, v.store.central.Peek, bounds, statuses); err != nil {
		return err
	}
	if _, denied, _ := summarize(bounds, statuses); denied {
		return nil
	}
	_, err := v.decideLocally(ctx, v.store.fallback.Peek, bounds, statuses)
	return err
}
