package outage

import (
	"context"
	"fmt"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// DefaultSharePct is how much of a limit all live nodes together may admit while the shared store is away: less
	// than all of it, because not every node may see the others die.
	DefaultSharePct = 70
	// mostNodes bounds among how many nodes a limit is shared, so that no product is too large.
	mostNodes = 1_000_000
	// overloadWait is what a request that found no room to wait is told to wait.
	overloadWait = limit.Second
)

// ViewOptions are what one plugin config wants of a store. Namespace must be set.
type ViewOptions struct {
	Namespace string // whose nodes share the limits out
	SharePct  int    // percent of a limit that all nodes together admit locally, 1 to 100; 0: DefaultSharePct
	Nodes     int    // the fewest nodes to share among, also while fewer are known to live; 0: 1; a million at most
}

// View is a store as one plugin config uses it. It is an admit.Buckets, and safe for concurrent use.
//
// While the shared store is away, all nodes together admit at most SharePct percent of a limit beyond what it had
// admitted before, or one token for each node if that is more, as long as they agree on how many they are.
type View struct {
	store     *Store
	namespace *namespace
	nodes     int
	shares    shares
	close     sync.Once
}

// View makes a view. It does no I/O. The namespace's nodes are counted until its last view is closed.
func (s *Store) View(o ViewOptions) *View {
	return &View{
		store: s, namespace: s.join(o.Namespace), nodes: or(o.Nodes, 1), shares: shares{pct: int64(or(o.SharePct, DefaultSharePct))},
	}
}

// Close ends the view. Requests in flight may still use it.
func (v *View) Close() { v.close.Do(func() { v.store.part(v.namespace) }) }

// live is among how many nodes limits are shared.
func (v *View) live() int { return min(max(v.nodes, int(v.namespace.live.Load())), mostNodes) }

// Take implements admit.Buckets. Bounds that fail open or closed and whose server did not answer are left Unanswered.
// An error means misuse: outages are not errors.
func (v *View) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) != len(statuses) {
		return fmt.Errorf("take %d bounds: there is room for %d statuses", len(bounds), len(statuses))
	}
	if len(bounds) == 0 {
		return nil
	}
	if err := v.store.ask(ctx, bounds, statuses); err != nil {
		return err
	}
	if v.store.remember(bounds, statuses) {
		return nil
	}
	return v.fallBack(ctx, bounds, statuses)
}

// ask asks the shared store, if there is room to wait for it.
func (s *Store) ask(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	ticket, ok := s.bulkhead.enter(bounds)
	if !ok {
		for i := range statuses {
			statuses[i] = decision.Status{Wait: overloadWait, Now: s.now(), Failure: decision.Overloaded}
		}
		return nil
	}
	defer s.bulkhead.leave(ticket)
	return s.shared.Take(ctx, bounds, statuses)
}

// Saw notes answers of the shared store that others than views have asked for, so that a fallback knows of them.
func (s *Store) Saw(bounds []policy.Bound, statuses []decision.Status) { s.remember(bounds, statuses) }

// remember keeps what the answers say is used of each bucket that may need a fallback, and tells whether all bounds
// were answered.
func (s *Store) remember(bounds []policy.Bound, statuses []decision.Status) bool {
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
	of       []int // the request's bounds
	bounds   []policy.Bound
	statuses []decision.Status
}

// fallBack decides the bounds that the shared store did not answer, and with them the request: what the others have
// spent is given back if it is denied after all.
func (v *View) fallBack(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	s := v.store
	failure, refused, closed := judge(bounds, statuses)
	s.activations[failure].Add(1)
	if refused {
		return nil // by a bucket that all nodes share: whatever the others would say
	}
	denied, err := v.decideLocally(ctx, bounds, statuses, !closed)
	if err != nil {
		return err
	}
	if denied || closed {
		s.giveBack(ctx, bounds, statuses)
	}
	s.ledger.book(bounds, statuses, !denied && !closed, s.now())
	return nil
}

// judge tells what the shared store's answers come to: why the first bound without one has none, whether an answered
// bound refuses the request, and whether an unanswered one that fails closed does.
func judge(bounds []policy.Bound, statuses []decision.Status) (failure decision.Failure, refused, closed bool) {
	for i := range bounds {
		denies := decision.Denies(&bounds[i], &statuses[i])
		if statuses[i].Source != decision.Unanswered {
			refused = refused || denies
			continue
		}
		closed = closed || denies
		if failure == decision.NoFailure {
			failure = statuses[i].Failure
		}
	}
	return failure, refused, closed
}

// decideLocally takes (or only asks, if the request is denied already) the unanswered bounds that fail local from this
// process, and tells whether any of them denies.
func (v *View) decideLocally(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, spend bool) (denied bool, err error) {
	s := v.store
	d := s.drafts.Get().(*draft)
	defer s.putBack(d)
	if err := v.draw(d, bounds, statuses); err != nil || len(d.bounds) == 0 {
		return false, err
	}
	if spend {
		err = s.fallback.Take(ctx, d.bounds, d.statuses)
	} else {
		err = s.fallback.Ask(d.bounds, d.statuses)
	}
	if err != nil {
		return false, fmt.Errorf("fall back: %w", err)
	}
	for j, i := range d.of {
		shared, local := &statuses[i], &d.statuses[j]
		local.Source, local.Failure = decision.Local, shared.Failure
		local.Wait = waitLocally(&bounds[i], local.Wait, shared.Wait)
		*shared = *local
		denied = denied || decision.Denies(&bounds[i], shared)
	}
	return denied, nil
}

// draw fills d with the bounds that this process decides. Each has this node's share of its limit, and its bucket starts
// with the same fraction used as was last seen.
func (v *View) draw(d *draft, bounds []policy.Bound, statuses []decision.Status) error {
	s, live := v.store, v.live()
	for i := range bounds {
		b := &bounds[i]
		if statuses[i].Source != decision.Unanswered || !b.Enforced() || b.Policy.FailMode != policy.FailLocal {
			continue
		}
		share, err := v.shares.of(b.Policy, live)
		if err != nil {
			return err
		}
		if used, at, ok := s.sightings.recall(&b.Key); ok {
			capacity := b.Policy.Limit.Capacity()
			s.fallback.Seed(b.Key, &share.Limit, proportion(min(used, capacity), share.Limit.Capacity(), capacity), at)
		}
		d.of = append(d.of, i)
		d.bounds = append(d.bounds, policy.Bound{Policy: share, Key: b.Key, Cost: b.Cost})
		d.statuses = append(d.statuses, decision.Status{})
	}
	return nil
}

func (s *Store) putBack(d *draft) {
	clear(d.bounds) // the names in the keys are the request's
	d.of, d.bounds, d.statuses = d.of[:0], d.bounds[:0], d.statuses[:0]
	s.drafts.Put(d)
}

// giveBack refunds what the shared store has spent for a request that is denied.
func (s *Store) giveBack(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) {
	for i := range statuses {
		if statuses[i].Source == decision.Redis && statuses[i].Charged {
			s.shared.Refund(ctx, bounds, statuses)
			return
		}
	}
}
