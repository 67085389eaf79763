package outage

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const compartments = 64

// bulkhead bounds how many requests wait for the shared store: in the process, and of each owner (a tenant, or an
// address without one), so that one tenant whose shard hangs cannot use up the room of all others.
type bulkhead struct {
	all, perOwner int64
	waiting       atomic.Int64
	seed          maphash.Seed
	parts         [compartments]compartment
}

// compartment counts the waiting requests of some owners, by the hash of their names: that two owners share a count is
// less likely than a broken disk, and costs neither more than a fallback.
type compartment struct {
	mu      sync.Mutex
	waiting map[uint64]int64
	_       [48]byte // keeps the next lock off this cache line
}

func newBulkhead(all, perOwner int) *bulkhead {
	b := &bulkhead{all: int64(all), perOwner: int64(perOwner), seed: maphash.MakeSeed()}
	for i := range b.parts {
		b.parts[i].waiting = map[uint64]int64{}
	}
	return b
}

// owner is whose requests are counted together.
type owner struct {
	group policy.Group
	name  string
}

// nobody is the ticket of a request that belongs to no owner. Only the process's bound holds for it.
const nobody = 0

// ticket is what the request with these bounds is counted by.
func (b *bulkhead) ticket(bounds []policy.Bound) uint64 {
	for i := range bounds {
		if key := &bounds[i].Key; key.Group == policy.ByTenant || key.Group == policy.ByIP {
			return max(maphash.Comparable(b.seed, owner{key.Group, key.GroupID}), nobody+1)
		}
	}
	return nobody
}

// enter counts a request in, if there is room: it must then leave by the ticket.
func (b *bulkhead) enter(bounds []policy.Bound) (ticket uint64, ok bool) {
	if b.waiting.Add(1) > b.all {
		b.waiting.Add(-1)
		return nobody, false
	}
	if ticket = b.ticket(bounds); ticket == nobody {
		return nobody, true
	}
	part := &b.parts[ticket%compartments]
	part.mu.Lock()
	n := part.waiting[ticket]
	if ok = n < b.perOwner; ok {
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
	if ticket == nobody {
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
