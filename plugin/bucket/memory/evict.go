package memory

import (
	"context"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// At the ceiling a new bucket replaces the one with the least loss. The loss is how much of a limit is spent, and for
// how long still: the used share of the limit × the time until the bucket expires. So the used up quota of a day is
// evicted last, and a name that was seen once first.
//
// A client may invent names of users, credentials and addresses, and of tenants where requests name them. So buckets
// are in cohorts: buckets of one tenant's users, of all addresses without a tenant, and of all tenants
// themselves. A new bucket of a cohort replaces another of the same cohort where that loses no more than a sample of
// all buckets, and always once the cohort has its part of the store. So invented names evict no more than that part
// of the other buckets, those with the least loss first. Addresses, and further users of a tenant, evict no tenant's
// own bucket as long as their shard has others. The buckets of endpoints and all are in no cohort: as long as a
// shard has a cohort, none of them is evicted.
//
// An eviction considers [sampleSize] buckets of all and as many of cohorts, whatever the store's size, under the
// lock of the shard alone.

const (
	// sampleSize is how many buckets a new one chooses from at the ceiling, of all and of a cohort.
	sampleSize = 8
	// cohortPart is the part of a shard that one cohort may take at the ceiling: one in so many.
	cohortPart = 4
	// sparedLoss is the loss of a bucket that another one must not evict, at least.
	sparedLoss = math.MaxInt64 / 2
)

// cohortKey identifies a cohort: a tenant's users, all addresses without a tenant, or all tenants.
type cohortKey struct {
	group             policy.Group // ByTenant or ByIP
	namespace, tenant string       // of users
}

// cohort holds the buckets of one cohort in one shard, in no order.
type cohort struct {
	key     cohortKey
	buckets []*bucket
}

// ofTenants is the cohort of the tenants' own buckets.
var ofTenants = cohortKey{group: policy.ByTenant}

// cohortKeyOf returns the cohort of a bucket, and false where it is in none.
func cohortKeyOf(key *policy.Key) (cohortKey, bool) {
	k := cohortKey{group: key.Group}
	if key.Group == policy.ByTenant && key.Kind != policy.WholeGroup {
		k.namespace, k.tenant = key.Namespace, key.GroupID
	}
	return k, !key.Shared()
}

// joinCohort adds a bucket to its cohort, if it has one.
func (sh *shard) joinCohort(b *bucket) {
	key, ok := cohortKeyOf(&b.key)
	if !ok {
		return
	}
	c := sh.cohorts[key]
	if c == nil {
		key.namespace, key.tenant = strings.Clone(key.namespace), strings.Clone(key.tenant)
		c = &cohort{key: key}
		sh.cohorts[key] = c
	}
	b.cohort, b.place = c, int32(len(c.buckets))
	c.buckets = append(c.buckets, b)
}

// leaveCohort removes a bucket from its cohort, if it has one.
func (sh *shard) leaveCohort(b *bucket) {
	c := b.cohort
	if c == nil {
		return
	}
	last := len(c.buckets) - 1
	c.buckets[b.place] = c.buckets[last]
	c.buckets[b.place].place = b.place
	c.buckets[last] = nil
	if c.buckets = c.buckets[:last]; last == 0 {
		delete(sh.cohorts, c.key)
	} else if cap(c.buckets) > smallMap && last < cap(c.buckets)/4 {
		c.buckets = append(make([]*bucket, 0, 2*last), c.buckets...)
	}
}

// write stores the state of a bucket that was spent from under l.
func (b *bucket) write(state *limit.State, l *limit.Limit, now limit.Micros) {
	b.state, b.expiry = *state, l.Expiry(state, now)
	used := min(l.Status(state, now).Used, l.Capacity()) // a limit has 2 × 10^12 tokens at most
	b.used = int32(max(1024*used/l.Capacity(), 1))
}

// loss returns how much is lost when the bucket is evicted.
func (b *bucket) loss(now limit.Micros, isSpared bool) int64 {
	left := int64(max(b.expiry-now, 0))
	lost := min(left, sparedLoss/2048) * int64(b.used)
	if isSpared && left > 0 {
		lost = sparedLoss + lost/2
	}
	return lost
}

// choice is the bucket with the least loss that was considered.
type choice struct {
	bucket        *bucket
	loss          int64
	sparesTenants bool    // the bucket that needs the room is neither a tenant's nor of its first user
	within        *cohort // the only cohort to choose from, except for expired buckets; nil: any
}

// consider chooses a bucket if its loss is the least so far. It leaves out the buckets of the request that needs the
// room.
func (c *choice) consider(b *bucket, t *taking) {
	if t.uses(b) {
		return
	}
	isTenants := b.key.Group == policy.ByTenant && b.key.Kind == policy.WholeGroup
	isSpared := b.cohort == nil || c.within != nil && c.within != b.cohort || c.sparesTenants && isTenants
	if loss := b.loss(t.now, isSpared); c.bucket == nil || loss < c.loss {
		c.bucket, c.loss = b, loss
	}
}

// evict makes room in a full shard for the bucket of a key. Where the shard has no buckets but the request's own, it
// grows by this one.
func (sh *shard) evict(t *taking, key *policy.Key, perShard int) {
	k, _ := cohortKeyOf(key)
	same := sh.cohorts[k]
	best := choice{sparesTenants: k != ofTenants && (same != nil || key.Group != policy.ByTenant)}
	if same != nil {
		if len(same.buckets) >= max(perShard/cohortPart, 1) {
			best.within = same
		}
		same.sample(&best, t)
	}
	if best.bucket == nil || best.within == nil || k == ofTenants {
		sh.sample(&best, t)
	}
	if best.bucket == nil || best.loss >= sparedLoss {
		for other, c := range sh.cohorts { // a range over a map starts anywhere
			if other != ofTenants {
				c.sample(&best, t)
				break
			}
		}
	}
	switch victim := best.bucket; {
	case victim == nil:
	case victim.expiry <= t.now:
		sh.expireBucket(sh.hashOf(victim), victim, t.now)
	default:
		sh.removeBucket(sh.hashOf(victim), victim)
		sh.evicted++
	}
}

// sample considers some buckets of a cohort.
func (c *cohort) sample(best *choice, t *taking) {
	n := len(c.buckets)
	start := rand.IntN(n)
	for i := range min(sampleSize, n) {
		best.consider(c.buckets[(start+i)%n], t)
	}
}

// sample considers some buckets of a shard.
func (sh *shard) sample(best *choice, t *taking) {
	sampled := 0
	for _, b := range sh.byHash { // a range over a map starts anywhere
		best.consider(b, t)
		if sampled++; sampled == sampleSize+len(t.drafts) {
			return
		}
	}
}

func (sh *shard) hashOf(b *bucket) uint64 { return maphash.Comparable(sh.seed, b.key) }

// uses reports whether the request has a bucket.
func (t *taking) uses(b *bucket) bool {
	for i := range t.drafts {
		if t.drafts[i].bucket == b {
			return true
		}
	}
	return false
}

const (
	// round is how long Run takes to visit every shard once.
	round = 10 * time.Second
	// maxTicks is how often Run wakes the process in a round, a power of two, so that it divides the number of shards.
	maxTicks = 64
	// smallMap is the size from which a map that has become mostly empty is made anew.
	smallMap = 64
)

// Run drops expired buckets until ctx ends, one shard at a time, and returns nil then. Between two shards it lets
// requests go first. Without Run a store is correct, and grows up to its ceiling.
func (s *Store) Run(ctx context.Context) error {
	shardsPerTick := max(len(s.shards)/maxTicks, 1)
	ticker := time.NewTicker(round * time.Duration(shardsPerTick) / time.Duration(len(s.shards)))
	defer ticker.Stop()
	for i := 0; ; i = (i + shardsPerTick) % len(s.shards) {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for j := range shardsPerTick {
				s.shards[i+j].sweep(s.now())
				runtime.Gosched()
			}
		}
	}
}

// Sweep drops all buckets that have expired at now, as Run does one shard at a time. It is for callers with a clock of
// their own.
func (s *Store) Sweep(now limit.Micros) {
	for i := range s.shards {
		s.shards[i].sweep(now)
	}
}

// sweep drops the shard's buckets that have expired at now.
func (sh *shard) sweep(now limit.Micros) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for hash, b := range sh.byHash {
		for b != nil {
			next := b.next
			if b.expiry <= now {
				sh.expireBucket(hash, b, now)
			}
			b = next
		}
	}
	// A map never shrinks by itself.
	if sh.most > smallMap && sh.kept < sh.most/4 {
		smaller := make(map[uint64]*bucket, sh.kept)
		maps.Copy(smaller, sh.byHash)
		sh.byHash, sh.most = smaller, sh.kept
	}
}

// expireBucket removes a bucket that has expired at now.
func (sh *shard) expireBucket(hash uint64, b *bucket, now limit.Micros) {
	sh.removeBucket(hash, b)
	sh.expired++
	sh.droppedAt = max(sh.droppedAt, now)
}
