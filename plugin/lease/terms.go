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
	// leastOut is how much of a limit must be allowed out so that leasing it is worth its price.
	leastOut = 10
	// maxTerms bounds for how many policies terms are kept compiled.
	maxTerms = 10_000
)

// terms are how a policy is leased.
type terms struct {
	// asked is the policy as the shared store must be asked by everyone, whether for a lease or for a single request:
	// its capacity is less by what may be out.
	asked *policy.Policy
	// leased is asked in shadow mode: of a batch of shadow bounds each is granted, or not, alone.
	leased *policy.Policy
	most   int64 // tokens that may be out on lease over all live nodes
}

// newTerms are the terms for a policy, or nil where it cannot or need not be leased.
//
// A token bucket's own promise is capacity + rate × t for every interval. What nodes take from the bucket in an interval
// keeps the promise of the capacity that they ask with; what they admit in it can be more by what was out on lease at
// its beginning. So they ask with the capacity less the most that may be out, and the sum keeps the promise of the limit.
// A fixed window needs none of that: leases end with their window, and within it all that is spent was taken before.
func newTerms(p *policy.Policy, pct int64) *terms {
	spec := p.Limit.Spec()
	t := terms{asked: p, most: portion(spec.Burst, pct)}
	if t.most < leastOut {
		return nil
	}
	switch spec.Algorithm {
	case limit.FixedWindow:
	case limit.TokenBucket:
		spec.Burst -= t.most
		l, err := limit.New(spec)
		if err != nil || l.Tick() != p.Limit.Tick() {
			return nil // in ticks of another length, the promise would be another
		}
		reduced := *p
		reduced.Limit = l
		t.asked = &reduced
	default:
		return nil
	}
	leased := *t.asked
	leased.Mode = policy.Shadow
	t.leased = &leased
	return &t
}

// portion is pct percent of tokens, rounded down.
func portion(tokens, pct int64) int64 {
	hi, lo := bits.Mul64(uint64(tokens), uint64(pct))
	quotient, _ := bits.Div64(hi, lo, 100)
	return int64(quotient)
}

// book keeps the terms of policies, compiled once for each.
type book struct {
	leased func(*policy.Policy) bool
	pct    int64

	mu       sync.RWMutex
	compiled map[*policy.Policy]*terms
}

func (b *book) of(p *policy.Policy) *terms {
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
