package outage

import (
	"context"
	"fmt"
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Local returns the buckets of this process with this node's shares of the limits, whatever the state of the central
// store and the fail modes: for subjects that must not leave anything there. Nothing is charged later. Statuses have
// the source Local and no failure.
func (v *Store) Local() store.Store { return local{v} }

// local is the store of [Store.Local].
type local struct{ view *Store }

// Take implements store.Store.
func (l local) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return l.decide(ctx, l.view.store.fallback.Take, bounds, statuses)
}

// Peek implements store.Store.
func (l local) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return l.decide(ctx, l.view.store.fallback.Peek, bounds, statuses)
}

// Settle implements store.Store.
func (l local) Settle(ctx context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64) error {
	shares, err := l.limited(bounds)
	if err != nil {
		return err
	}
	return l.view.store.fallback.Settle(ctx, shares, statuses, actual)
}

// decide decides bounds by this node's shares of their limits.
func (l local) decide(ctx context.Context, decide decide, bounds []policy.Bound, statuses []decision.Status) error {
	shares, err := l.limited(bounds)
	if err != nil {
		return err
	}
	if err := decide(ctx, shares, statuses); err != nil {
		return fmt.Errorf("decide locally: %w", err)
	}
	for i := range statuses {
		statuses[i].Source = decision.Local
		statuses[i].Wait = localWait(&bounds[i], statuses[i].Wait, 0)
	}
	return nil
}

// limited returns bounds with this node's shares of their limits.
func (l local) limited(bounds []policy.Bound) ([]policy.Bound, error) {
	live, all := l.view.live(), make([]policy.Bound, len(bounds))
	for i := range bounds {
		share, err := l.view.shares.get(bounds[i].Policy, live)
		if err != nil {
			return nil, err
		}
		all[i] = policy.Bound{Policy: share, Key: bounds[i].Key, Cost: bounds[i].Cost}
	}
	return all, nil
}

// localWait returns the wait of a client that this node's share of a limit denies. If the cost exceeds the share but
// not the limit, it is the time that the central store is expected to be unavailable, a second at least.
func localWait(b *policy.Bound, wait, outage limit.Micros) limit.Micros {
	if wait == limit.Never && b.Cost <= b.Policy.Limit.Capacity() {
		return max(outage, limit.Second)
	}
	return wait
}

// maxLocalLimits bounds the local limits that one store keeps compiled.
const maxLocalLimits = 10_000

// localLimits holds the policies of one store, each with this node's share of its limit. A share is compiled once, and
// again when the number of live nodes changes.
type localLimits struct {
	pct int64

	mu       sync.RWMutex
	live     int
	compiled map[*policy.Policy]*policy.Policy
}

// get returns p with its share among live nodes.
func (s *localLimits) get(p *policy.Policy, live int) (*policy.Policy, error) {
	s.mu.RLock()
	share := s.compiled[p]
	same := s.live == live
	s.mu.RUnlock()
	if same && share != nil {
		return share, nil
	}
	l, err := localLimit(p.Limit.Spec(), s.pct, int64(live))
	if err != nil {
		return nil, fmt.Errorf("share the limit of policy %s among %d nodes: %w", p.Name, live, err)
	}
	copied := *p
	copied.Limit = l
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != live || s.compiled == nil || len(s.compiled) >= maxLocalLimits {
		s.live, s.compiled = live, map[*policy.Policy]*policy.Policy{}
	}
	s.compiled[p] = &copied
	return &copied, nil
}

// localLimit returns pct percent of a limit, divided by the nodes that share it: its quantity and its burst, each at
// least 1.
//
// A fraction of a limit can have products too large to be counted exactly where the whole has not (7 per 100 s reduces
// less than 10 per 100 s does). Then the quantity is rounded down to fewer and fewer digits, and if that is not enough
// the burst is halved; with a burst of 1 any quantity of one digit compiles.
func localLimit(spec limit.Spec, pct, live int64) (limit.Limit, error) {
	spec.Quantity = portion(spec.Quantity, pct, live)
	switch spec.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		spec.Burst = portion(spec.Burst, pct, live)
	default:
		spec.Burst = 0 // it is the quantity
	}
	for digit := int64(10); ; {
		l, err := limit.New(spec)
		switch {
		case err == nil:
			return l, nil
		case spec.Quantity >= digit:
			spec.Quantity -= spec.Quantity % digit
			digit *= 10
		case spec.Burst > 1:
			spec.Burst /= 2
		default:
			return limit.Limit{}, err
		}
	}
}

// portion returns tokens × pct ÷ (100 × live), rounded down, at least 1.
func portion(tokens, pct, live int64) int64 {
	return max(proportion(tokens, pct, 100*live), 1)
}

// proportion returns n × part ÷ whole, rounded down, for 0 ≤ part and a quotient that fits.
func proportion(n, part, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(n), uint64(part))
	quotient, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(quotient)
}
