package memory

import (
	"hash/maphash"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// At the ceiling a new bucket takes the place of one whose owner loses little by it. What an owner loses is how much of
// its limit is spent, and for how long still: the used share of the limit × the time until the state means nothing. So
// the used up quota of a day is the last to go, and a name that was seen once the first.
//
// A client may make up the names of users, credentials and addresses. The buckets of one tenant's users are a crowd,
// and so are those of all addresses without a tenant. A new bucket of a crowd takes the place of another of it where
// that loses no more than a sample of all buckets, and always once the crowd has its part of the store. So nobody who
// makes up names evicts more than that part of the others, and what they have spent is the last of it. The own buckets
// of tenants, endpoints and everybody are no crowd's: as long as a shard has a crowd, none of them goes.
//
// An eviction looks at [sampleSize] buckets of all and as many of a crowd, whatever the store's size, under no lock but
// the shard's.

const (
	// sampleSize is how many buckets a new one chooses from at the ceiling, of all and of a crowd.
	sampleSize = 8
	// crowdPart is the part of a shard that one crowd may take at the ceiling: one in so many.
	crowdPart = 4
	// ownLoss is added to the loss of a bucket that is no crowd's.
	ownLoss = math.MaxInt64 / 2
)

// owner names a crowd: a tenant's users, or, with the zero value, all addresses without a tenant.
type owner struct{ namespace, tenant string }

// crowd is the buckets of one owner's users and addresses in one shard, in no order.
type crowd struct {
	owner   owner
	buckets []*bucket
}

// crowdOf returns whose crowd a bucket belongs to, and false where it is no crowd's.
func crowdOf(key *policy.Key) (owner, bool) {
	switch {
	case key.Group == policy.ByIP:
		return owner{}, true
	case key.Kind != policy.WholeGroup:
		return owner{key.Namespace, key.GroupID}, true
	}
	return owner{}, false
}

// join adds a bucket to its crowd, if it has one.
func (sh *shard) join(b *bucket) {
	of, ok := crowdOf(&b.key)
	if !ok {
		return
	}
	c := sh.crowds[of]
	if c == nil {
		of.namespace, of.tenant = strings.Clone(of.namespace), strings.Clone(of.tenant)
		c = &crowd{owner: of}
		sh.crowds[of] = c
	}
	b.crowd, b.place = c, int32(len(c.buckets))
	c.buckets = append(c.buckets, b)
}

// part takes a bucket out of its crowd.
func (sh *shard) part(b *bucket) {
	c := b.crowd
	if c == nil {
		return
	}
	last := len(c.buckets) - 1
	c.buckets[b.place] = c.buckets[last]
	c.buckets[b.place].place = b.place
	c.buckets[last] = nil
	if c.buckets = c.buckets[:last]; last == 0 {
		delete(sh.crowds, c.owner)
	} else if cap(c.buckets) > smallMap && last < cap(c.buckets)/4 {
		c.buckets = append(make([]*bucket, 0, 2*last), c.buckets...)
	}
}

// write keeps the state of a bucket that was spent from under l.
func (b *bucket) write(state *limit.State, l *limit.Limit, now limit.Micros) {
	b.state, b.expiry = *state, l.Expiry(state, now)
	used := min(l.Status(state, now).Used, l.Capacity()) // a limit has 2 × 10^12 tokens at most
	b.used = int32(max(1024*used/l.Capacity(), 1))
}

// loss is how much a bucket's owner gains, and the others lose, when it is forgotten.
func (b *bucket) loss(now limit.Micros) int64 {
	left := int64(max(b.expiry-now, 0))
	lost := min(left, ownLoss/2048) * int64(b.used)
	if b.crowd == nil && left > 0 {
		lost = ownLoss + lost/2
	}
	return lost
}

// choice is the best of the buckets that were looked at.
type choice struct {
	bucket *bucket
	loss   int64
}

// consider looks at a bucket. Those of the request that needs the room do not count.
func (c *choice) consider(b *bucket, t *taking) {
	if t.uses(b) {
		return
	}
	if loss := b.loss(t.now); c.bucket == nil || loss < c.loss {
		c.bucket, c.loss = b, loss
	}
}

// evict makes room in a full shard for the bucket of a key. Where the shard has no buckets but the request's own, it
// grows by this one.
func (sh *shard) evict(t *taking, key *policy.Key, perShard int) {
	var best choice
	own := sh.crowdFor(key)
	if own != nil {
		own.sample(&best, t)
	}
	if best.bucket == nil || len(own.buckets) < max(perShard/crowdPart, 1) {
		sh.sample(&best, t)
	}
	if best.bucket == nil || best.loss >= ownLoss {
		for _, c := range sh.crowds { // a range over a map starts anywhere
			c.sample(&best, t)
			break
		}
	}
	switch victim := best.bucket; {
	case victim == nil:
	case victim.expiry <= t.now:
		sh.forget(sh.hashOf(victim), victim, t.now)
	default:
		sh.remove(sh.hashOf(victim), victim)
		sh.evicted++
	}
}

// crowdFor returns the crowd that the bucket of a key will join; nil: none, or it will be the first.
func (sh *shard) crowdFor(key *policy.Key) *crowd {
	if of, ok := crowdOf(key); ok {
		return sh.crowds[of]
	}
	return nil
}

// sample considers some buckets of a crowd.
func (c *crowd) sample(best *choice, t *taking) {
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

// uses reports whether a bucket is one of the request's.
func (t *taking) uses(b *bucket) bool {
	for i := range t.drafts {
		if t.drafts[i].bucket == b {
			return true
		}
	}
	return false
}
