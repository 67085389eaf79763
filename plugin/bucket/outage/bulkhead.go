package outage

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

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
