package outage

import (
	"context"
	"fmt"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// DefaultSharePct is the percentage of a limit that all live nodes together may admit while the shared store is
	// unavailable: less than all of it, because not every node may notice that others are gone.
	DefaultSharePct = 70
	// maxNodes bounds the number of nodes that share a limit, so that no product is too large.
	maxNodes = 1_000_000
	// overloadWait is the wait of a request that found no room to wait for the store.
	overloadWait = limit.Second
)

// ViewOptions configures the view of one plugin config. Namespace must be set.
type ViewOptions struct {
	Namespace string // whose nodes share the limits
	SharePct  int    // percent of a limit that all nodes together admit locally, 1 to 100; 0: DefaultSharePct
	Nodes     int    // the fewest nodes to share among, also while fewer are known to live; 0: 1; a million at most
}

// View is a store as one plugin config uses it. It is a store.Store, and safe for concurrent use.
//
// While the shared store is unavailable, all nodes together admit at most SharePct percent of a limit beyond what it
// had admitted before, or one token for each node if that is more, as long as they agree on the number of nodes.
type View struct {
	store     *Store
	namespace *members
	nodes     int
	shares    shares
	close     sync.Once
}

// View returns a view. It does no I/O. The namespace's nodes are counted until its last view is closed.
func (s *Store) View(o ViewOptions) *View {
	return &View{
		store:     s,
		namespace: s.openView(o.Namespace),
		nodes:     orDefault(o.Nodes, 1),
		shares:    shares{pct: int64(orDefault(o.SharePct, DefaultSharePct))},
	}
}

// Close ends the view. Requests in flight may still use it.
func (v *View) Close() { v.close.Do(func() { v.store.closeView(v.namespace) }) }

// live returns the number of nodes that share limits.
func (v *View) live() int { return min(max(v.nodes, int(v.namespace.live.Load())), maxNodes) }

// Take implements store.Store. It leaves bounds Unanswered that fail open or closed and whose server did not answer.
func (v *View) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("take", bounds, statuses); err != nil {
		return err
	}
	if len(bounds) == 0 {
		return nil
	}
	ticket, ok := v.store.enter(bounds, statuses)
	if ok {
		if err := v.store.takeShared(ctx, ticket, bounds, statuses); err != nil {
			return err
		}
	}
	if v.store.recordUsage(bounds, statuses) {
		return nil
	}
	return v.fallBack(ctx, bounds, statuses)
}

// enter counts a request in among those that wait for the shared store. If there is no room, it fills in the statuses.
func (s *Store) enter(bounds []policy.Bound, statuses []decision.Status) (ticket uint64, ok bool) {
	if ticket, ok = s.bulkhead.enter(bounds); ok {
		return ticket, true
	}
	for i := range statuses {
		statuses[i] = decision.Status{Wait: overloadWait, Now: s.now(), Failure: decision.Overloaded}
	}
	return ticket, false
}

// takeShared takes from the shared store for a request that was counted in.
func (s *Store) takeShared(
	ctx context.Context, ticket uint64, bounds []policy.Bound, statuses []decision.Status,
) error {
	defer s.bulkhead.leave(ticket)
	return s.shared.Take(ctx, bounds, statuses)
}

// Observe records answers of the shared store to calls other than requests, so that a fallback can use them.
func (s *Store) Observe(bounds []policy.Bound, statuses []decision.Status) {
	s.recordUsage(bounds, statuses)
}

// recordUsage records the usage of each bucket that may need a fallback, and reports whether all bounds were answered.
func (s *Store) recordUsage(bounds []policy.Bound, statuses []decision.Status) bool {
	answered := true
	var now limit.Micros
	for i := range bounds {
		b := &bounds[i]
		if statuses[i].Source == decision.Unanswered {
			answered = false
			continue
		}
		if !b.Enforced() || b.Policy.FailMode != policy.FailLocal {
			continue
		}
		if now == 0 {
			now = s.now()
		}
		s.sightings.remember(&b.Key, statuses[i].Used, now)
	}
	return answered
}

// draft is the part of a request that this process decides.
type draft struct {
	index    []int // of the request's bounds
	bounds   []policy.Bound
	statuses []decision.Status
}

// fallBack decides the bounds that the shared store did not answer, and with them the request. If that denies it, what
// the answered bounds spent is refunded.
func (v *View) fallBack(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s := v.store
	failure, denied, closed := summarize(bounds, statuses)
	s.activations[failure].Add(1)
	if denied {
		return nil // by a bucket that all nodes share, whatever the others would say
	}
	deniedHere, err := v.decideLocally(ctx, bounds, statuses, !closed)
	if err != nil {
		return err
	}
	if deniedHere || closed {
		if err := s.refundShared(ctx, bounds, statuses); err != nil {
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
func (v *View) decideLocally(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, spend bool,
) (denied bool, err error) {
	s := v.store
	d := s.drafts.Get().(*draft)
	defer s.putBack(d)
	if err := v.draftLocal(d, bounds, statuses); err != nil || len(d.bounds) == 0 {
		return false, err
	}
	if spend {
		err = s.fallback.Take(ctx, d.bounds, d.statuses)
	} else {
		err = s.fallback.Peek(ctx, d.bounds, d.statuses)
	}
	if err != nil {
		return false, fmt.Errorf("fall back: %w", err)
	}
	for j, i := range d.index {
		shared, local := &statuses[i], &d.statuses[j]
		local.Source, local.Failure = decision.Local, shared.Failure
		local.Wait = localWait(&bounds[i], local.Wait, shared.Wait)
		*shared = *local
		denied = denied || decision.Denies(&bounds[i], shared)
	}
	return denied, nil
}

// draftLocal fills d with the bounds that this process decides. Each has this node's share of its limit, and its bucket
// starts with the fraction that was last seen used.
func (v *View) draftLocal(d *draft, bounds []policy.Bound, statuses []decision.Status) error {
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
		d.index = append(d.index, i)
		d.bounds = append(d.bounds, policy.Bound{Policy: share, Key: b.Key, Cost: b.Cost})
		d.statuses = append(d.statuses, decision.Status{})
	}
	return nil
}

func (s *Store) putBack(d *draft) {
	clear(d.bounds) // the names in the keys are the request's
	d.index, d.bounds, d.statuses = d.index[:0], d.bounds[:0], d.statuses[:0]
	s.drafts.Put(d)
}

// refundShared returns what the shared store spent for a request that is denied.
func (s *Store) refundShared(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	for i := range statuses {
		if statuses[i].Source == decision.Redis && statuses[i].Charged {
			return s.shared.Refund(ctx, bounds, statuses)
		}
	}
	return nil
}
