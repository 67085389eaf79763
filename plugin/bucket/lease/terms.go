package lease

import (
	"math/bits"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// DefaultSharePct is how much of a limit may be out on lease over all live nodes, in percent.
	DefaultSharePct = 2
	// MaxSharePct is the most that may be asked for.
	MaxSharePct = 5
	// minShare is how much of a limit must be allowed out so that leasing it is worth its price.
	minShare = 10
	// drift bounds how much faster than a node's clock the store's runs: by one part in so many. Clocks are slewed by one
	// in 2,000 at most.
	drift = 500
	// maxTerms bounds for how many policies terms are kept compiled.
	maxTerms = 10_000
)

// terms are how a policy is leased.
type terms struct {
	// policy is the policy as the shared store must be policy by everyone, whether for a lease or for a single request:
	// its capacity is less by what a lease may add.
	policy *policy.Policy
	// leased is asked in shadow mode: of a batch of shadow bounds each is granted, or not, alone.
	leased   *policy.Policy
	capacity int64 // asked's
	maxOut   int64 // tokens that may be out on lease over all live nodes
}

// newTerms are the terms for a policy, or nil where it cannot or need not be leased. They depend on its limit and the
// share alone, so that all nodes ask one bucket with one capacity.
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
			return nil // in ticks of another length, the promise would be another
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

// refillPerLease is what comes back to a token bucket, in whole tokens and rounded up, while a grant can be spent. Asked with
// so much less capacity, or with less by the most that may be out, a bucket keeps the promise of its limit L, capacity +
// rate × t in any interval, whatever is spent from leases:
//
// What is spent from instant a to instant b, both of the store's clock, was taken after a - T and no later than b, where
// T = life + life ÷ drift: a node counts a grant's life from before it asked. In ticks of the limit, of which an instant lies
// ⌊instant ÷ tick⌋ after the first, b is at most ⌈T ÷ tick⌉ further from a - T than from a. So a bucket of capacity C lets
// at most C + rate × (t + ⌈T ÷ tick⌉) be taken of what is spent in t ticks, and that is L's promise where C is L's capacity
// less rate × ⌈T ÷ tick⌉. (A hard threshold, of 100 percent or more, takes as many percent of the difference off.)
//
// It is also kept where C is L's capacity less what may be out: at most C + rate × t of what is spent was taken in the
// interval, and the rest was out at its beginning.
//
// Grants that are given back change none of this. A refund returns no more than what is certain still to be missing:
// the debt after it is no less than if only what was not given back had been taken, whoever else takes and gives back
// meanwhile. The proof is in package limit, at [limit.Limit.Refund]. So a bucket that was only ever asked for what is
// really spent would have admitted all of it. A grant that is divided goes back in parts, each with the receipt of the
// whole: without a part, the debt was no less than all of it less that part. Two grants that are joined have the
// receipt of the earlier one: see [limit.Receipt.Join].
//
// A node's clock that stands (not: steps) while its machine is suspended, or a store's that jumps ahead, makes T longer.
// Then an interval may see more by what that node had out; by the share at most.
func refillPerLease(l *limit.Limit) int64 {
	u := l.Units()
	ticks := int64((grantLife + grantLife/drift + u.Tick - 1) / u.Tick)
	return (u.Rate*ticks + u.Base - 1) / u.Base // the rate is 10^12 and the ticks are 2,004,000 at most
}

// refill is how many tokens come back to a bucket in so long, at most a life. A window's come back all at once.
func (t *terms) refill(elapsed limit.Micros) int64 {
	spec := t.policy.Limit.Spec()
	if spec.Algorithm != limit.TokenBucket {
		return 0
	}
	return spec.Quantity * int64(min(max(elapsed, 0), grantLife)) / int64(spec.Window)
}

// percentOf is pct percent of tokens, rounded down.
func percentOf(tokens, pct int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), uint64(pct))
	quotient, _ := bits.Div64(hi, lo, 100)
	return int64(quotient)
}

// termsCache keeps the terms of policies, compiled once for each.
type termsCache struct {
	leased func(*policy.Policy) bool
	pct    int64

	mu       sync.RWMutex
	compiled map[*policy.Policy]*terms
}

func (b *termsCache) get(p *policy.Policy) *terms {
	b.mu.RLock()
	t, known := b.compiled[p]
	b.mu.RUnlock()
	if known {
		return t
	}
	if b.leased(p) {
		t = newTerms(p, b.pct)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.compiled == nil || len(b.compiled) >= maxTerms {
		b.compiled = map[*policy.Policy]*terms{}
	}
	b.compiled[p] = t
	return t
}
