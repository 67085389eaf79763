package outage

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const compartments = 64

// bulkhead bounds how many requests wait for the central store: in the process, and of each tenant (or address without
// one), so that one tenant whose shard hangs cannot use up the room of all others.
type bulkhead struct {
	all, perTenant int64
	waiting        atomic.Int64
	seed           maphash.Seed
	parts          [compartments]compartment
}

// compartment counts the waiting requests of some tenants, by the hash of their names. Two tenants share a count with
// negligible probability, at the price of a fallback.
type compartment struct {
	mu      sync.Mutex
	waiting map[uint64]int64
	_       [48]byte // keeps the next lock off this cache line
}

func newBulkhead(all, perTenant int) *bulkhead {
	b := &bulkhead{all: int64(all), perTenant: int64(perTenant), seed: maphash.MakeSeed()}
	for i := range b.parts {
		b.parts[i].waiting = map[uint64]int64{}
	}
	return b
}

// tenantKey identifies a tenant or an address without one.
type tenantKey struct {
	group policy.Group
	name  string
}

// noTicket is the ticket of a request without a tenant or address. Only the process's bound applies to it.
const noTicket = 0

// ticket returns the count that a request with these bounds belongs to.
func (b *bulkhead) ticket(bounds []policy.Bound) uint64 {
	for i := range bounds {
		if key := &bounds[i].Key; key.Group == policy.ByTenant || key.Group == policy.ByIP {
			return max(maphash.Comparable(b.seed, tenantKey{key.Group, key.GroupID}), noTicket+1)
		}
	}
	return noTicket
}

// enter counts a request in if there is room. It must then leave with the ticket.
func (b *bulkhead) enter(bounds []policy.Bound) (ticket uint64, ok bool) {
	if b.waiting.Add(1) > b.all {
		b.waiting.Add(-1)
		return noTicket, false
	}
	if ticket = b.ticket(bounds); ticket == noTicket {
		return noTicket, true
	}
	part := &b.parts[ticket%compartments]
	part.mu.Lock()
	n := part.waiting[ticket]
	if ok = n < b.perTenant; ok {
		part.waiting[ticket] = n + 1
	}
	part.mu.Unlock()
	if !ok {
		b.waiting.Add(-1)
	}
	return ticket, ok
}

func (b *bulkhead) leave(ticket uint64) {
	defer b.waiting.Add(-1)
	if ticket == noTicket {
		return
	}
	part := &b.parts[ticket%compartments]
	part.mu.Lock()
	if n := part.waiting[ticket]; n > 1 {
		part.waiting[ticket] = n - 1
	} else {
		delete(part.waiting, ticket)
	}
	part.mu.Unlock()
}
