package outage

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// DefaultSharePct is the percentage of a limit that all live nodes together may admit while the central store is
	// unavailable: less than all of it, because not every node may notice that others are gone.
	DefaultSharePct = 70
	// maxNodes bounds the number of nodes that share a limit, so that no product is too large.
	maxNodes = 1_000_000
	// overloadWait is the wait of a request that found no room to wait for the store.
	overloadWait = limit.Second
)

// StoreOptions configures the store of one plugin config. Namespace must be set.
type StoreOptions struct {
	Namespace string // whose nodes share the limits
	SharePct  int    // percent of a limit that all nodes together admit locally, 1 to 100; 0: DefaultSharePct
	Nodes     int    // the fewest nodes to share among, also while fewer are known to live; 0: 1; a million at most
}

// Store is a guarded store as one plugin config uses it. It is a store.Store, and safe for concurrent use.
//
// While the central store is unavailable, all nodes together admit at most SharePct percent of a limit beyond what it
// had admitted before, or one token for each node if that is more, as long as they agree on the number of nodes.
type Store struct {
	store     *Guard
	namespace *members
	nodes     int
	shares    localLimits
	close     sync.Once
}

// Store returns the store of a config. It does no I/O. The namespace's nodes are counted until its last store is
// closed.
func (s *Guard) Store(o StoreOptions) *Store {
	return &Store{
		store:     s,
		namespace: s.openNamespace(o.Namespace),
		nodes:     max(o.Nodes, 1),
		shares:    localLimits{pct: int64(cmp.Or(o.SharePct, DefaultSharePct))},
	}
}

// Close ends the store. Requests in flight may still use it.
func (v *Store) Close() {
	v.close.Do(func() {
		v.store.mu.Lock()
		defer v.store.mu.Unlock()
		v.namespace.views-- // the next beat leaves a namespace without stores
	})
}

// live returns the number of nodes that share limits.
func (v *Store) live() int { return min(max(v.nodes, int(v.namespace.live.Load())), maxNodes) }

// Take implements store.Store. It leaves bounds Unanswered that fail open or closed and whose server did not answer.
func (v *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("take", bounds, statuses); err != nil {
		return err
	}
	if err := v.store.askCentral(ctx, v.store.central.Take, bounds, statuses); err != nil {
		return err
	}
	v.store.Observe(bounds, statuses)
	for i := range statuses {
		if statuses[i].Source == decision.Unanswered {
			return v.fallBack(ctx, bounds, statuses)
		}
	}
	return nil
}

// decide is Take or Peek of a store.
type decide func(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

// askCentral takes from the central store, or peeks at it. It fills in the statuses also where too many requests wait
// for the store.
func (s *Guard) askCentral(
	ctx context.Context, decide decide, bounds []policy.Bound, statuses []decision.Status,
) error {
	if len(bounds) == 0 {
		return nil
	}
	counter, ok := s.bulkhead.enter(bounds)
	if !ok {
		for i := range statuses {
			statuses[i] = decision.Status{Wait: overloadWait, Now: s.now(), Failure: decision.Overloaded}
		}
		return nil
	}
	defer s.bulkhead.leave(counter)
	return decide(ctx, bounds, statuses)
}

// Observe records the usage of each bucket that may need a fallback, from answers of the central store to requests and
// to other calls.
func (s *Guard) Observe(bounds []policy.Bound, statuses []decision.Status) {
	var now limit.Micros
	for i := range bounds {
		b := &bounds[i]
		if statuses[i].Source == decision.Unanswered || !b.Enforced() || b.Policy.FailMode != policy.FailLocal ||
			b.Key.Slots { // requests in flight are no usage that a fallback could go on from
			continue
		}
		if now == 0 {
			now = s.now()
		}
		s.sightings.remember(&b.Key, statuses[i].Used, now)
	}
}

// drafts holds the parts of requests that this process decides.
var drafts = sync.Pool{New: func() any { return new(store.Part) }}

// fallBack decides the bounds that the central store did not answer, and with them the request. If that denies it, what
// the answered bounds spent is refunded.
func (v *Store) fallBack(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s := v.store
	failure, denied, closed := summarize(bounds, statuses)
	s.activations[failure].Add(1)
	s.debts.recordLostSlots(bounds, statuses, s.now())
	if denied {
		return nil // by a bucket that all nodes share, whatever the others would say
	}
	decide := s.fallback.Take
	if closed {
		decide = s.fallback.Peek
	}
	deniedHere, err := v.decideLocally(ctx, decide, bounds, statuses)
	if err != nil {
		return err
	}
	spent := func(status decision.Status) bool { return status.Source == decision.Redis && status.Charged }
	if (deniedHere || closed) && slices.ContainsFunc(statuses, spent) {
		if err := s.central.Settle(ctx, bounds, statuses, nil); err != nil {
			return err
		}
	}
	s.debts.recordRequest(bounds, statuses, !deniedHere && !closed, s.now())
	return nil
}

// summarize returns the failure of the first unanswered bound, whether an answered bound denies the request, and
// whether an unanswered bound that fails closed does.
func summarize(bounds []policy.Bound, statuses []decision.Status) (failure decision.Failure, denied, closed bool) {
	for i := range bounds {
		denies := decision.Denies(&bounds[i], &statuses[i])
		if statuses[i].Source != decision.Unanswered {
			denied = denied || denies
			continue
		}
		closed = closed || denies
		if failure == decision.NoFailure {
			failure = statuses[i].Failure
		}
	}
	return failure, denied, closed
}

// decideLocally takes the unanswered bounds that fail local from this process, or only peeks if the request is denied
// already. It reports whether any of them denies.
func (v *Store) decideLocally(
	ctx context.Context, decide decide, bounds []policy.Bound, statuses []decision.Status,
) (denied bool, err error) {
	d := drafts.Get().(*store.Part)
	defer func() {
		d.Reset()
		drafts.Put(d)
	}()
	if err := v.draftLocal(d, bounds, statuses); err != nil || len(d.Bounds) == 0 {
		return false, err
	}
	if err := decide(ctx, d.Bounds, d.Statuses); err != nil {
		return false, fmt.Errorf("fall back: %w", err)
	}
	for j, i := range d.Index {
		central, local := &statuses[i], &d.Statuses[j]
		local.Source, local.Failure = decision.Local, central.Failure
		local.Wait = localWait(&bounds[i], local.Wait, central.Wait)
		*central = *local
		denied = denied || decision.Denies(&bounds[i], central)
	}
	return denied, nil
}

// draftLocal fills d with the bounds that this process decides. Each has this node's share of its limit, and its bucket
// starts with the fraction that was last seen used.
func (v *Store) draftLocal(d *store.Part, bounds []policy.Bound, statuses []decision.Status) error {
	s, live := v.store, v.live()
	for i := range bounds {
		b := &bounds[i]
		if statuses[i].Source != decision.Unanswered || !b.Enforced() || b.Policy.FailMode != policy.FailLocal {
			continue
		}
		share, err := v.shares.get(b.Policy, live)
		if err != nil {
			return err
		}
		if used, at, ok := s.sightings.takeOnce(&b.Key); ok {
			capacity := b.Policy.Limit.Capacity()
			s.fallback.Seed(b.Key, &share.Limit, proportion(min(used, capacity), share.Limit.Capacity(), capacity), at)
		}
		d.Add(i, policy.Bound{Policy: share, Key: b.Key, Cost: b.Cost}, decision.Status{})
	}
	return nil
}

// counters is the number of counts of waiting requests, by the hash of their tenant.
const counters = 1 << 16

// bulkhead bounds how many requests wait for the central store: in the process, and of each tenant (or address without
// one), so that one tenant whose shard hangs cannot use up the room of all others. One pair of tenants in 65,536 shares
// a count, at the price of a fallback.
type bulkhead struct {
	all, perTenant int64
	waiting        atomic.Int64
	seed           maphash.Seed
	ofTenants      [counters]atomic.Int64
}

func newBulkhead(all, perTenant int) *bulkhead {
	return &bulkhead{all: int64(all), perTenant: int64(perTenant), seed: maphash.MakeSeed()}
}

// tenantKey identifies a tenant or an address without one.
type tenantKey struct {
	group policy.Group
	name  string
}

func tenantKeyOf(key *policy.Key) tenantKey { return tenantKey{key.Group, key.GroupID} }

// counter returns the count that a request with these bounds belongs to; nil: it has no tenant or address, and only the
// process's bound applies to it.
func (b *bulkhead) counter(bounds []policy.Bound) *atomic.Int64 {
	for i := range bounds {
		if key := &bounds[i].Key; key.Group == policy.ByTenant || key.Group == policy.ByIP {
			return &b.ofTenants[maphash.Comparable(b.seed, tenantKeyOf(key))%counters]
		}
	}
	return nil
}

// enter counts a request in if there is room. It must then leave with its counter.
func (b *bulkhead) enter(bounds []policy.Bound) (counter *atomic.Int64, ok bool) {
	if b.waiting.Add(1) > b.all {
		b.waiting.Add(-1)
		return nil, false
	}
	counter = b.counter(bounds)
	if counter != nil && counter.Add(1) > b.perTenant {
		b.leave(counter)
		return nil, false
	}
	return counter, true
}

func (b *bulkhead) leave(counter *atomic.Int64) {
	b.waiting.Add(-1)
	if counter != nil {
		counter.Add(-1)
	}
}
