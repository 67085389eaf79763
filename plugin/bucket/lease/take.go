package lease

import (
	"context"
	"slices"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Store puts leases in front of the store of one plugin config. It is a store.Store, and safe for concurrent
// use.
type Store struct {
	store *Leases
	next  store.Store
}

// Store returns a store that calls next for bounds that are neither leased nor known to be denied. next must spend from
// the store that the leases are taken from.
func (s *Leases) Store(next store.Store) *Store { return &Store{store: s, next: next} }

// Take implements store.Store. A request whose bounds are all leased waits for nothing but locks. A request with an
// enforced bound that is known to deny is denied at once: Take fills in only the statuses of the bounds that deny, the
// others stay [decision.Unanswered] without a failure, and shadow bounds are not counted. It returns the error of next,
// or an error if there is not one status for each bound.
func (v *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("take", bounds, statuses); err != nil {
		return err
	}
	clear(statuses)
	var few [fewBounds]place
	places := few[:min(len(bounds), fewBounds)]
	if len(bounds) > fewBounds {
		m := manyPlaces.Get().(*[]place)
		defer putBack(m)
		*m = slices.Grow((*m)[:0], len(bounds))[:len(bounds)]
		places = *m
	}
	shards := v.store.locate(bounds, places)
	if v.store.decide(bounds, statuses, places, shards) {
		return nil
	}
	return v.takeFromStore(ctx, bounds, statuses, places, shards)
}

// decide answers the bounds that need no call of the central store, and reports whether these are all. If not, the
// caller must settle what it drew.
func (s *Leases) decide(bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet) bool {
	s.lock(shards)
	defer s.unlock(shards)
	now := s.now() // read under the locks, so that it does not step back between the requests of one bucket
	if s.denyFromMemory(bounds, statuses, places, now) {
		s.countRemembered(statuses, places, now)
		return true
	}
	toCall, last := 0, 0
	for i := range places {
		p := &places[i]
		switch {
		case p.how == fromMemory: // in shadow
			statuses[i] = p.entry.deniedStatus(bounds[i].Cost, now)
			p.shard.counts.remembered++
		case p.entry != nil && !p.shard.closed && p.entry.draw(&p.draw, bounds[i].Cost, now):
			p.how = fromLease
		default:
			toCall, last = toCall+1, i
		}
	}
	switch {
	case toCall == 0:
		s.settle(bounds, statuses, places, true, now)
	case toCall == 1 && places[last].entry != nil: // so no other bound can keep it from spending what is there
		places[last].entry.extendDenial(bounds[last].Cost, now)
	}
	return toCall == 0
}

// denyFromMemory looks up the entries of the bounds, and denies the request if an enforced bound is known to deny. It
// changes no entry.
func (s *Leases) denyFromMemory(
	bounds []policy.Bound, statuses []decision.Status, places []place, now limit.Micros,
) bool {
	denied := false
	for i := range places {
		p, b := &places[i], &bounds[i]
		p.entry = p.shard.lookup(p.hash, &b.Key)
		if p.entry != nil && !p.entry.matchesPolicy(b.Policy, &s.terms) {
			p.entry = nil
		}
		if p.entry != nil && p.entry.denies(b.Cost, now) {
			p.how = fromMemory
			denied = denied || b.Enforced()
		}
	}
	if !denied {
		return false
	}
	for i := range places {
		p, cost := &places[i], bounds[i].Cost
		if !bounds[i].Enforced() || p.entry == nil {
			continue
		}
		if p.how == fromMemory {
			statuses[i] = p.entry.deniedStatus(cost, now)
		} else {
			statuses[i], _ = p.entry.recallDenial(cost, now) // so that the client reads the longest known wait
		}
	}
	return true
}

// countRemembered counts the statuses of a request that was denied from memory.
func (s *Leases) countRemembered(statuses []decision.Status, places []place, now limit.Micros) {
	for i := range places {
		if p := &places[i]; statuses[i].Source == source {
			p.entry.lastUsed = now
			p.shard.counts.remembered++
		}
	}
}

// settle ends what the bounds of a request have drawn from leases. If one of them is due for renewal, it schedules all
// that are low with it. The shards are locked.
func (s *Leases) settle(
	bounds []policy.Bound, statuses []decision.Status, places []place, admitted bool, now limit.Micros,
) {
	lasts, renewal := limit.Micros(s.renewalTime.Load()), limit.Never
	for i := range places {
		p := &places[i]
		if p.how != fromLease {
			continue
		}
		e := p.entry
		e.settle(&p.draw, admitted, p.shard.closed, now)
		e.lastUsed = now
		e.fillStatus(&statuses[i], admitted && bounds[i].Cost > 0, now)
		p.shard.counts.drawn++
		if e.renewalDue(lasts, now) {
			renewal = now
		} else if e.queued {
			renewal = min(renewal, max(e.nextRenewal, now))
		}
	}
	if renewal == limit.Never {
		return
	}
	for i := range places {
		if p := &places[i]; p.how == fromLease && p.entry.renewalUseful(0, now) {
			s.scheduleRenewal(p.shard, p.entry, renewal)
		}
	}
}

// draft is the part of a request that goes to the central store.
type draft struct {
	store.Part
	terms []*terms // of its bounds
}

var drafts = sync.Pool{New: func() any { return new(draft) }}

func (d *draft) putBack() {
	clear(d.terms)
	d.terms = d.terms[:0]
	d.Reset()
	drafts.Put(d)
}

// fill adds the bounds that the central store must decide, each with the policy that it is called with. It reports
// whether any other was drawn from a lease.
func (d *draft) fill(cache *termsCache, bounds []policy.Bound, places []place) (drawn bool) {
	for i := range places {
		if places[i].how != fromStore {
			drawn = drawn || places[i].how == fromLease
			continue
		}
		b := bounds[i]
		t := cache.get(b.Policy)
		if t != nil {
			b.Policy = t.policy
		}
		d.terms = append(d.terms, t)
		d.Add(i, b, decision.Status{})
	}
	return drawn
}

// report fills in the statuses of the request.
func (d *draft) report(statuses []decision.Status) {
	for j, i := range d.Index {
		statuses[i] = d.Statuses[j]
		if t := d.terms[j]; t != nil && statuses[i].Wait == limit.Never {
			statuses[i].Capacity = t.capacity
		}
	}
}

// takeFromStore takes the bounds that could not be decided here from the central store. If that denies the request,
// what was drawn returns to the leases.
func (v *Store) takeFromStore(
	ctx context.Context, bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet,
) error {
	s := v.store
	d := drafts.Get().(*draft)
	defer d.putBack()
	drawn := d.fill(&s.terms, bounds, places)
	calledAt := s.now()
	if err := v.takeDraft(ctx, d, bounds, statuses, places, shards, drawn); err != nil {
		return err
	}
	for j, i := range d.Index {
		s.recordAnswer(&places[i], &bounds[i], d.terms[j], &statuses[i], calledAt, soleBound(d.Bounds, j))
	}
	return nil
}

// takeDraft takes the draft of a request, and settles what leases gave for it, also if the take panics: nothing else
// could spend or release those tokens.
func (v *Store) takeDraft(
	ctx context.Context, d *draft, bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet,
	drawn bool,
) error {
	admitted := false
	if drawn {
		defer func() { v.store.settleAll(bounds, statuses, places, shards, admitted) }()
	}
	if err := v.next.Take(ctx, d.Bounds, d.Statuses); err != nil {
		return err
	}
	d.report(statuses)
	admitted = true
	for _, i := range d.Index {
		admitted = admitted && !decision.Denies(&bounds[i], &statuses[i])
	}
	return nil
}

// settleAll locks the shards of a request and settles it.
func (s *Leases) settleAll(
	bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet, admitted bool,
) {
	s.lock(shards)
	defer s.unlock(shards)
	s.settle(bounds, statuses, places, admitted, s.now())
}

// soleBound reports whether no other of the bounds spends from the bucket of bounds[j].
func soleBound(bounds []policy.Bound, j int) bool {
	for i := range bounds {
		if i != j && bounds[i].Key == bounds[j].Key {
			return false
		}
	}
	return true
}

// recordAnswer updates the entry of a bound from the store's answer to a call at the instant calledAt: it remembers a
// denial, predicts the next one, or marks the bucket hot. Where two bounds of a request share a bucket, a denial covers
// both together and is not remembered.
func (s *Leases) recordAnswer(
	p *place, b *policy.Bound, t *terms, status *decision.Status, calledAt limit.Micros, alone bool,
) {
	if b.Key.Slots || !answered(status) && p.entry == nil {
		return // a slot may become free at any instant
	}
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if !answered(status) {
		p.entry.forgetDenial(b.Cost, status, calledAt)
		return
	}
	now := s.now()
	p.shard.counts.called++
	if status.Wait > 0 {
		if alone && s.denialMemory > 0 {
			s.recordDenial(p, b, t, status, calledAt)
		}
		return
	}
	if p.shard.lookup(p.hash, &b.Key) == nil && (t == nil || !p.shard.seenRecently(p.hash, now)) {
		return
	}
	e := s.getOrCreate(p.shard, p.hash, b, t, now)
	if e == nil {
		return
	}
	e.forgetDenial(b.Cost, status, calledAt)
	e.lastUsed = now
	if t == nil {
		if alone && status.Charged {
			e.predictDenial(b.Cost, status, calledAt, s.denialMemory)
		}
		return
	}
	e.recordStatus(status, calledAt)
	if status.Charged && s.fits(b, t) {
		e.demand.observe(b.Cost, now)
	}
	if e.renewalUseful(b.Cost, now) {
		s.scheduleRenewal(p.shard, e, now)
	}
}

// fits reports whether a lease has room for a cost, among the nodes that live now. A request that costs more calls the
// store anyway, and a lease for it would only keep tokens from other nodes.
func (s *Leases) fits(b *policy.Bound, t *terms) bool {
	return b.Cost <= 1 || b.Cost <= t.maxOut/max(int64(s.nodes(b.Key.Namespace)), 1)
}

// recordDenial remembers a denial, and schedules a renewal of a hot bucket for when tokens have come back to it.
func (s *Leases) recordDenial(p *place, b *policy.Bound, t *terms, status *decision.Status, calledAt limit.Micros) {
	now := s.now()
	e := s.getOrCreate(p.shard, p.hash, b, t, now)
	if e == nil {
		return
	}
	e.recordStatus(status, calledAt)
	e.rememberDenial(b.Cost, status, calledAt, s.denialMemory)
	if status.Wait <= 2*sharingRound && e.denial.cost == b.Cost && e.markScarce(b.Cost, status, calledAt) && !e.queued {
		s.scheduleRenewal(p.shard, e, now)
	}
}

// Peek implements store.Store: it shows what leases and remembered denials decide, and draws nothing. What is available
// on lease counts as not used.
func (v *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if err := store.CheckLengths("peek at", bounds, statuses); err != nil {
		return err
	}
	clear(statuses)
	places := make([]place, len(bounds))
	if v.store.peek(bounds, statuses, places, v.store.locate(bounds, places)) {
		return nil
	}
	d := drafts.Get().(*draft)
	defer d.putBack()
	d.fill(&v.store.terms, bounds, places)
	if err := v.next.Peek(ctx, d.Bounds, d.Statuses); err != nil {
		return err
	}
	d.report(statuses)
	return nil
}

// peek answers the bounds that need no call of the central store, and reports whether these are all. It changes no
// entry.
func (s *Leases) peek(bounds []policy.Bound, statuses []decision.Status, places []place, shards shardSet) (all bool) {
	s.lock(shards)
	defer s.unlock(shards)
	now := s.now()
	if s.denyFromMemory(bounds, statuses, places, now) {
		return true
	}
	all = true
	before := make([]holdings, len(places))
	for i := range places {
		p := &places[i]
		if p.entry != nil {
			before[i] = p.entry.holdings
		}
		switch {
		case p.how == fromMemory: // in shadow
			statuses[i] = p.entry.deniedStatus(bounds[i].Cost, now)
		case p.entry != nil && !p.shard.closed && p.entry.draw(&p.draw, bounds[i].Cost, now):
			p.how = fromLease
		default:
			all = false
		}
	}
	for i := range slices.Backward(places) { // two bounds may have drawn from one entry
		if places[i].entry != nil {
			places[i].entry.holdings = before[i]
		}
	}
	for i := range places {
		if places[i].how == fromLease {
			places[i].entry.fillStatus(&statuses[i], false, now)
		}
	}
	return all
}
