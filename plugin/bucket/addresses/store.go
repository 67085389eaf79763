package addresses

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// slack is added to the life of a key in the store.
const slack = 2 * limit.Second

// Store applies a budget to the requests of one plugin config, in front of its buckets. It is a store.Store, and safe
// for concurrent use.
type Store struct {
	budget *Budget
	next   store.Store
	local  store.Store
}

// Store returns a store that takes from next, which the budget's store keeps, and above the budget from local, which
// keeps buckets in this process, with this node's shares of the limits, and does no I/O.
func (b *Budget) Store(next store.Store, local store.Store) *Store {
	return &Store{budget: b, next: next, local: local}
}

// part is the part of a request that one store decides.
type part struct{ store.Part }

// draft holds the parts of a request with addresses.
type draft struct {
	routes        []route
	shared, local part // for next, and for this process
}

var drafts = sync.Pool{New: func() any { return new(draft) }}

func (d *draft) putBack() {
	d.shared.Reset()
	d.local.Reset()
	clear(d.routes)
	d.routes = d.routes[:0]
	drafts.Put(d)
}

// Take implements store.Store. A request that a bucket in this process denies is denied at once: the statuses of its
// other bounds stay [decision.Unanswered] without a failure. An error is next's or local's, or there is not one status
// for each bound.
func (v *Store) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return v.decide(ctx, store.Store.Take, bounds, statuses)
}

// Peek implements store.Store. It shows the bucket that counts an address now: a new one has its place for as long as a
// request has to write its key.
func (v *Store) Peek(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	return v.decide(ctx, store.Store.Peek, bounds, statuses)
}

// decider is Take or Peek of a store.
type decider func(s store.Store, ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error

// decide takes bounds or peeks at them.
func (v *Store) decide(
	ctx context.Context, decide decider, bounds []policy.Bound, statuses []decision.Status,
) (err error) {
	if err := store.CheckLengths("decide", bounds, statuses); err != nil {
		return err
	}
	d := drafts.Get().(*draft)
	defer d.putBack()
	now := v.budget.now()
	if v.budget.chooseRoutes(d, bounds, now) {
		err = decide(v.next, ctx, bounds, statuses)
	} else {
		err = v.decideParts(ctx, decide, d, bounds, statuses)
	}
	if err == nil {
		v.budget.extendKeys(d, bounds, statuses, now)
	}
	return err
}

// chooseRoutes decides how each bound is counted, and reports whether next can decide the request unchanged. Bounds of
// one address are counted in one way, but for its sliding logs: each is counted on its own.
func (b *Budget) chooseRoutes(d *draft, bounds []policy.Bound, now limit.Micros) (asItIs bool) {
	asItIs = true
	for i := range bounds {
		key := &bounds[i].Key
		if Address(key) == nil {
			d.routes = append(d.routes, route{})
			continue
		}
		bytes := logBytes(&bounds[i])
		hash := b.hash(key, bytes)
		var r route
		same := func(earlier route) bool { return earlier.way != notByAddress && earlier.hash == hash }
		if at := slices.IndexFunc(d.routes, same); at >= 0 {
			r = d.routes[at]
		} else {
			r = b.route(key, hash, bytes, now)
		}
		d.routes = append(d.routes, r)
		asItIs = asItIs && r.way == byAddress
	}
	return asItIs
}

// decideParts decides first what is counted in this process, because that does no I/O and can be refunded.
func (v *Store) decideParts(
	ctx context.Context, decide decider, d *draft, bounds []policy.Bound, statuses []decision.Status,
) error {
	clear(statuses)
	d.distribute(bounds)
	if len(d.local.Bounds) > 0 {
		if err := decide(v.local, ctx, d.local.Bounds, d.local.Statuses); err != nil {
			return fmt.Errorf("count addresses in this process: %w", err)
		}
		if d.local.report(statuses) || len(d.shared.Bounds) == 0 {
			return nil
		}
	}
	err := decide(v.next, ctx, d.shared.Bounds, d.shared.Statuses)
	denied := err != nil || d.shared.report(statuses)
	if denied && len(d.local.Bounds) > 0 {
		if failed := v.local.Settle(ctx, d.local.Bounds, d.local.Statuses, nil); failed != nil {
			return fmt.Errorf("refund what addresses have spent in this process: %w", failed)
		}
		d.local.report(statuses)
	}
	return err
}

// distribute adds each bound to the part of the store that decides it.
func (d *draft) distribute(bounds []policy.Bound) {
	for i := range bounds {
		r, b := &d.routes[i], bounds[i]
		if r.way == inProcess {
			d.local.Add(i, b, decision.Status{})
			continue
		}
		if r.way != byPrefix {
			d.shared.Add(i, b, decision.Status{})
		}
		if r.way == byPrefix || r.way == byBoth && !b.Key.Slots {
			b.Key = WithAddress(b.Key, r.prefix)
			d.shared.Add(i, b, decision.Status{})
		}
	}
}

// report fills in the statuses of the request, for a bound that was counted byBoth the stricter one, and reports
// whether the request is denied.
func (p *part) report(statuses []decision.Status) (denied bool) {
	last := -1
	for j, i := range p.Index {
		denied = denied || decision.Denies(&p.Bounds[j], &p.Statuses[j])
		if i != last || stricter(&p.Statuses[j], &statuses[i]) {
			statuses[i] = p.Statuses[j]
		}
		last = i
	}
	return denied
}

// stricter reports whether a status is stricter than another of the same limit: one that denies, then one without an
// answer, then the one with less remaining.
func stricter(a, than *decision.Status) bool {
	if x, y := rank(a), rank(than); x != y {
		return x > y
	}
	if a.Source == decision.Unanswered || !a.Admits() {
		return a.Wait > than.Wait
	}
	return a.Remaining < than.Remaining
}

// rank returns 2 for a denial, 1 for a failure and 0 for an admission.
func rank(s *decision.Status) int {
	switch {
	case s.Source != decision.Unanswered && !s.Admits():
		return 2
	case s.Source == decision.Unanswered && s.Failure != decision.NoFailure:
		return 1
	default:
		return 0
	}
}

// extendKeys keeps the keys of a request for as long as they live in the store.
func (b *Budget) extendKeys(d *draft, bounds []policy.Bound, statuses []decision.Status, now limit.Micros) {
	for i := range d.routes {
		switch r := &d.routes[i]; r.way {
		case byAddress, byBoth:
			b.own.extend(r.hash, now, now+life(&bounds[i].Policy.Limit, &statuses[i]))
		case byPrefix: // not byBoth, where the address is extended
			b.prefixes.extend(r.prefixHash, now, now+life(&bounds[i].Policy.Limit, &statuses[i]))
		default:
		}
	}
}

// life returns how long the key of a bound may live in the store, by the store's answer. Without an answer, when the
// key may have been written, it is as long as most limits need. A key lives for a quarter longer than its state needs.
func life(l *limit.Limit, s *decision.Status) limit.Micros {
	window := l.Spec().Window
	lasts := 2 * window
	switch {
	case s.Source == decision.Unanswered && s.Failure.MayHaveSpent():
	case s.Source == decision.Unanswered || s.Used == 0:
		return 0
	case l.IsConcurrency():
		lasts = window
	default:
		lasts = max(s.Reset-s.Now, 0)
		if l.Spec().Algorithm == limit.SlidingWindow {
			lasts += window // it counts in the next one too
		}
	}
	return lasts + lasts/4 + slack
}
