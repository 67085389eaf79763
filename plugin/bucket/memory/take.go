package memory

import (
	"context"
	"hash/maphash"
	"math"
	"slices"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// fewBounds is the most bounds that need no memory beyond the stack.
const fewBounds = 8

// scratch is the memory of a request with more bounds. It is reused.
type scratch struct {
	drafts []draft
	order  []int // empty, with room for all bounds
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (m *scratch) grow(n int) {
	m.drafts = slices.Grow(m.drafts[:0], n)[:n]
	m.order = slices.Grow(m.order[:0], n)
}

func (m *scratch) putBack() {
	clear(m.drafts) // they point to buckets
	scratches.Put(m)
}

// draft is a bucket of the current request, with a copy of its state to work on: the bucket itself changes only when it
// is spent from, so that a denied request changes nothing.
type draft struct {
	hash   uint64
	first  int // the first bound of the request with this key, whose draft serves all of them
	shard  *shard
	bucket *bucket // nil: there is none yet
	state  limit.State
	demand int64        // tokens of the enforced bounds that were checked so far
	spent  *limit.Limit // the limit that was spent last; nil: nothing was spent
}

// taking is one request under the locks of its buckets.
type taking struct {
	bounds   []policy.Bound
	statuses []decision.Status
	drafts   []draft
	now      limit.Micros
}

// Take implements store.Store. It waits for locks only.
func (s *Store) Take(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.decide(bounds, statuses, false)
}

// Peek implements store.Store. It waits for locks only.
func (s *Store) Peek(_ context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return s.decide(bounds, statuses, true)
}

// decide takes bounds or peeks at them.
func (s *Store) decide(bounds []policy.Bound, statuses []decision.Status, peeks bool) error {
	if err := store.CheckLengths("decide", bounds, statuses); err != nil {
		return err
	}
	clear(statuses)
	var few [fewBounds]draft
	var order [fewBounds]int
	t, locks := taking{bounds: bounds, statuses: statuses, drafts: few[:min(len(bounds), fewBounds)]}, order[:0]
	if len(bounds) > fewBounds {
		m := scratches.Get().(*scratch)
		defer m.putBack()
		m.grow(len(bounds))
		t.drafts, locks = m.drafts, m.order
	}
	locks = s.findShards(&t, locks)
	s.lock(locks)
	defer s.unlock(locks)
	// The clock is read under the locks, so that it does not step back between the requests of one bucket.
	t.now = s.now()
	for _, i := range locks {
		t.now = max(t.now, s.shards[i].droppedAt)
	}
	t.read()
	switch admitted := t.checkEnforced(); {
	case !admitted:
		t.checkShadows(false)
	case peeks:
		t.peekShadows()
	default:
		t.spend()
		s.store(&t)
	}
	t.report()
	return nil
}

// shardIndex returns the index of the shard of a hash. The number of shards is a power of two.
func (s *Store) shardIndex(hash uint64) int { return int(hash) & (len(s.shards) - 1) }

func (s *Store) lock(shards []int) {
	for _, i := range shards {
		s.shards[i].mu.Lock()
	}
}

func (s *Store) unlock(shards []int) {
	for _, i := range shards {
		s.shards[i].mu.Unlock()
	}
}

// findShards finds the shard of every bound and which bounds share a bucket. It returns the shards to lock, each once
// and in one order for all requests, so that no two requests wait for each other.
func (s *Store) findShards(t *taking, locks []int) []int {
	for i := range t.bounds {
		d := &t.drafts[i]
		d.hash, d.first = maphash.Comparable(s.seed, t.bounds[i].Key), i
		for j := range i {
			if t.drafts[j].hash == d.hash && t.bounds[j].Key == t.bounds[i].Key {
				d.first = t.drafts[j].first
				break
			}
		}
		index := s.shardIndex(d.hash)
		d.shard = &s.shards[index]
		locks = append(locks, index)
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

// advance returns bound i's limit and the draft of its bucket, brought to the present.
func (t *taking) advance(i int) (*limit.Limit, *draft) {
	l, d := &t.bounds[i].Policy.Limit, &t.drafts[t.drafts[i].first]
	l.Advance(&d.state, t.now)
	return l, d
}

// read copies the states of the buckets into the drafts.
func (t *taking) read() {
	for i := range t.drafts {
		d := &t.drafts[i]
		if d.first != i {
			continue
		}
		d.bucket = d.shard.findBucket(d.hash, &t.bounds[i].Key)
		if d.bucket != nil && d.bucket.expiry > t.now {
			d.state = d.bucket.state
		}
	}
}

// checkEnforced fills in the waits of the enforced bounds, and reports whether all of them admit. Bounds of one bucket
// must fit together.
func (t *taking) checkEnforced() bool {
	admitted := true
	for i := range t.bounds {
		if !t.bounds[i].Enforced() {
			continue
		}
		l, d := t.advance(i)
		wait := limit.Micros(0)
		if cost := t.bounds[i].Cost; cost > 0 {
			if d.demand > math.MaxInt64-cost {
				d.demand = math.MaxInt64 - cost
			}
			d.demand += cost
			wait = l.Wait(&d.state, t.now, d.demand)
		}
		t.statuses[i].Wait = wait
		admitted = admitted && wait == 0
	}
	return admitted
}

// spend spends all enforced bounds, and then the shadow bounds that admit.
func (t *taking) spend() {
	for i := range t.bounds {
		if t.bounds[i].Enforced() {
			t.charge(i)
		}
	}
	t.checkShadows(true)
}

// charge spends bound i, which admits.
func (t *taking) charge(i int) {
	if t.bounds[i].Cost <= 0 {
		return
	}
	l, d := t.advance(i)
	var id limit.SlotID
	if l.IsConcurrency() {
		id = store.NewSlotID()
	}
	t.statuses[i].Charged, t.statuses[i].Receipt = true, l.Acquire(&d.state, t.now, t.bounds[i].Cost, id)
	d.spent = l
}

// checkShadows fills in the waits of the shadow bounds one after the other, and spends each that admits if spends.
func (t *taking) checkShadows(spends bool) {
	for i := range t.bounds {
		if t.bounds[i].Enforced() {
			continue
		}
		l, d := t.advance(i)
		wait := l.Wait(&d.state, t.now, t.bounds[i].Cost)
		t.statuses[i].Wait = wait
		if spends && wait == 0 {
			t.charge(i)
		}
	}
}

// peekShadows fills in the waits of the shadow bounds beside what the request would spend, and leaves the drafts as the
// buckets are.
func (t *taking) peekShadows() {
	for i := range t.drafts {
		s := &t.drafts[i].state // spending may change entries
		s.Log, s.Slots = slices.Clone(s.Log), slices.Clone(s.Slots)
	}
	t.spend()
	for i := range t.statuses {
		t.statuses[i] = decision.Status{Wait: t.statuses[i].Wait}
		t.drafts[i].state = limit.State{}
	}
	t.read()
}

// store writes what was spent into the buckets, and adds those that are new.
func (s *Store) store(t *taking) {
	for i := range t.drafts {
		d := &t.drafts[i]
		if d.spent == nil {
			continue
		}
		if d.bucket == nil {
			d.bucket = d.shard.makeBucket(d.hash, &t.bounds[i].Key, s.perShard, t)
		}
		d.bucket.write(&d.state, d.spent, t.now)
	}
}

// report fills in how every bound stands after the request.
func (t *taking) report() {
	for i := range t.bounds {
		l, d := t.advance(i)
		status := &t.statuses[i]
		status.Status = l.Status(&d.state, t.now)
		status.Now, status.Source = t.now, decision.Memory
	}
}

// Settle implements store.Store. It waits for locks only.
func (s *Store) Settle(
	_ context.Context, bounds []policy.Bound, statuses []decision.Status, actual []int64,
) error {
	actual, refunds, err := store.Actuals(bounds, statuses, actual)
	if err != nil {
		return err
	}
	for i := range statuses {
		if statuses[i].Charged {
			s.settle(&bounds[i], &statuses[i], actual[i], refunds)
		}
	}
	return nil
}

// settle settles one bound. A charge makes a bucket where there is none. The status of a refund shows the bucket
// after it.
func (s *Store) settle(b *policy.Bound, status *decision.Status, actual int64, refunds bool) {
	hash := maphash.Comparable(s.seed, b.Key)
	sh := &s.shards[s.shardIndex(hash)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := max(s.now(), sh.droppedAt)
	var state limit.State
	kept := sh.findBucket(hash, &b.Key)
	if kept != nil && kept.expiry > now {
		state = kept.state
	}
	l := &b.Policy.Limit
	change := l.Settle(&state, now, b.Cost, actual, status.Receipt)
	status.Charged, status.Settled = false, l.WholeTokens(change)
	if refunds {
		after := state
		l.Advance(&after, now)
		status.Status, status.Now = l.Status(&after, now), now
	}
	if change == 0 {
		return
	}
	if kept == nil {
		kept = sh.makeBucket(hash, &b.Key, s.perShard, &taking{now: now})
	}
	expiry := kept.expiry
	if kept.write(&state, l, now); change < 0 {
		kept.expiry = expiry // as in Redis: later than this limit needs, but perhaps not another
	}
}
