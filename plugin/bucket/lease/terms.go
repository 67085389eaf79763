package lease

import (
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// DefaultSharePct is the share of a limit that may be out on lease over all live nodes, in percent.
	DefaultSharePct = 2
	// MaxSharePct is the largest share that can be set.
	MaxSharePct = 5
	// minShare is the smallest share, in tokens, for which leasing is worth its price.
	minShare = 10
	// drift bounds how much faster the store's clock runs than a node's: by one part in drift. Clocks are slewed by one
	// part in 2,000 at most.
	drift = 500
	// maxTerms bounds the number of policies whose terms stay compiled.
	maxTerms = 10_000
)

// terms says how a policy is leased.
type terms struct {
	// policy is the policy that every call of the central store uses, for leases and for single requests: its capacity is
	// less by what a lease may add.
	policy *policy.Policy
	// leased is policy in shadow mode: each bound of a batch of shadow bounds is granted on its own.
	leased   *policy.Policy
	capacity int64 // of policy
	maxOut   int64 // tokens that may be out on lease over all live nodes
}

// StorePolicy returns the policy that requests and renewals use to call the central store for a bucket of p, which may
// be leased with a share in percent: p itself, or a copy with less capacity if tokens of it may be out on lease.
func StorePolicy(p *policy.Policy, sharePct int) *policy.Policy {
	if t := newTerms(p, int64(min(sharePct, MaxSharePct))); t != nil {
		return t.policy
	}
	return p
}

// newTerms returns the terms of a policy, or nil if it cannot or need not be leased. They depend on its limit and the
// share alone, so that all nodes call the store for one bucket with one capacity.
func newTerms(p *policy.Policy, pct int64) *terms {
	spec := p.Limit.Spec()
	t := terms{policy: p, maxOut: percentOf(spec.Burst, pct)}
	if t.maxOut < minShare {
		return nil
	}
	switch spec.Algorithm {
	case limit.FixedWindow:
	case limit.TokenBucket:
		spec.Burst -= min(t.maxOut, refillPerLease(&p.Limit))
		l, err := limit.New(spec)
		if err != nil || l.Tick() != p.Limit.Tick() {
			return nil // ticks of another length would change the promise
		}
		reduced := *p
		reduced.Limit = l
		t.policy = &reduced
	default:
		return nil
	}
	leased := *t.policy
	leased.Mode = policy.Shadow
	t.leased, t.capacity = &leased, leased.Limit.Capacity()
	return &t
}

// refillPerLease returns what refills in a token bucket while a grant can be spent, in whole tokens and rounded up. A
// bucket that is called with that much less capacity, or with less by the most that may be out, keeps the promise of
// its limit L, capacity + rate × t in any interval, whatever is spent from leases:
//
// What is spent from instant a to instant b, both of the store's clock, was taken after a - T and no later than b,
// where T = grantLife + grantLife ÷ drift: a node counts a grant's life from before its call. In ticks of the limit, of
// which an instant lies ⌊instant ÷ tick⌋ after the first, b is at most ⌈T ÷ tick⌉ further from a - T than from a. So a
// bucket of capacity C lets at most C + rate × (t + ⌈T ÷ tick⌉) be taken of what is spent in t ticks, and that is L's
// promise where C is L's capacity less rate × ⌈T ÷ tick⌉. (A hard threshold, of 100 percent or more, takes as many
// percent of the difference off.)
//
// The promise also holds where C is L's capacity less what may be out: at most C + rate × t of what is spent was taken
// in the interval, and the rest was out at its beginning.
//
// Returned grants change none of this. A refund returns no more than what is certain to be missing still: the debt
// after it is no less than if only what was not returned had been taken, whatever else is taken and returned meanwhile.
// The proof is in package limit, at [limit.Limit.Refund]. So a bucket from which only the spent tokens were ever taken
// would have admitted all of them. A divided grant goes back in parts, each with the receipt of the whole: without a
// part, the debt was no less than all of it less that part. Two grants that are joined have the receipt of the earlier
// one: see [limit.Receipt.Join].
//
// A node's clock that stands (not: steps) while its machine is suspended, or a store's that jumps ahead, makes T
// longer. Then an interval may see more by what that node had out; by the share at most.
func refillPerLease(l *limit.Limit) int64 {
	u := l.Units()
	ticks := int64((grantLife + grantLife/drift + u.Tick - 1) / u.Tick)
	return (u.Rate*ticks + u.Base - 1) / u.Base // the rate is 10^12 and the ticks are 2,004,000 at most
}

// refill returns the tokens that come back to a bucket in a time, at most a grant's life. It is 0 for a window, whose
// tokens come back all at once.
func (t *terms) refill(elapsed limit.Micros) int64 {
	spec := t.policy.Limit.Spec()
	if spec.Algorithm != limit.TokenBucket {
		return 0
	}
	return spec.Quantity * int64(min(max(elapsed, 0), grantLife)) / int64(spec.Window)
}

// percentOf returns pct percent of tokens, rounded down.
func percentOf(tokens, pct int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), uint64(pct))
	quotient, _ := bits.Div64(hi, lo, 100)
	return int64(quotient)
}

// termsCache keeps the terms of policies, compiled once for each.
type termsCache struct {
	policies Policies
	pct      int64

	mu       sync.RWMutex
	compiled map[*policy.Policy]*terms
}

// get returns the terms of a policy, nil if it is not leased.
func (c *termsCache) get(p *policy.Policy) *terms {
	c.mu.RLock()
	t, known := c.compiled[p]
	c.mu.RUnlock()
	if known {
		return t
	}
	if c.policies.MayLease(p) {
		t = newTerms(p, c.pct)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compiled == nil || len(c.compiled) >= maxTerms {
		c.compiled = map[*policy.Policy]*terms{}
	}
	c.compiled[p] = t
	return t
}
