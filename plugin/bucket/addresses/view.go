package addresses

import (
	"context"
	"fmt"
	"sync"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/prefix"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// slack is how much longer a key is reckoned to be kept by the store than by the length of its life.
const slack = 2 * limit.Second

// Local keeps buckets in this process, with this node's shares of the limits. It waits for nothing.
type Local interface {
	// TakeLocally is admit.Buckets.
	TakeLocally(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error
	// RefundLocally gives back what TakeLocally has spent for the statuses that are Charged, and clears Charged.
	RefundLocally(bounds []policy.Bound, statuses []decision.Status) error
}

// View is a budget in front of what one plugin config asks otherwise. It is an admit.Buckets, and safe for concurrent
// use.
type View struct {
	budget *Budget
	next   admit.Buckets
	local  Local
}

// View makes a view that asks next, in which the budget's store keeps its buckets, and local above the budget.
func (b *Budget) View(next admit.Buckets, local Local) *View {
	return &View{budget: b, next: next, local: local}
}

// part is what is asked of one place for a request.
type part struct {
	of       []int // the request's bounds
	bounds   []policy.Bound
	statuses []decision.Status
}

func (p *part) add(i int, b policy.Bound) {
	p.of, p.bounds, p.statuses = append(p.of, i), append(p.bounds, b), append(p.statuses, decision.Status{})
}

func (p *part) reset() {
	clear(p.bounds) // the names in the keys are the request's
	p.of, p.bounds, p.statuses = p.of[:0], p.bounds[:0], p.statuses[:0]
}

// draft is a request with addresses.
type draft struct {
	routes      []route
	asked, here part // of next, and of this process
}

var drafts = sync.Pool{New: func() any { return new(draft) }}

func (d *draft) putBack() {
	d.asked.reset()
	d.here.reset()
	clear(d.routes)
	d.routes = d.routes[:0]
	drafts.Put(d)
}

// Take implements admit.Buckets. A request that a bucket in this process denies is denied at once: the statuses of its
// other bounds stay [decision.Unanswered] without a failure. An error is next's or local's, or there is not one status
// for each bound.
func (v *View) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	if len(bounds) != len(statuses) {
		return fmt.Errorf("take %d bounds: there is room for %d statuses", len(bounds), len(statuses))
	}
	if !anyAddress(bounds) {
		return v.next.Take(ctx, bounds, statuses)
	}
	d := drafts.Get().(*draft)
	defer d.putBack()
	b, now := v.budget, v.budget.now()
	if b.plan(d, bounds, now) {
		if err := v.next.Take(ctx, bounds, statuses); err != nil {
			return err
		}
		b.keep(d, bounds, statuses, now)
		return nil
	}
	return v.takeParts(ctx, d, bounds, statuses, now)
}

// Counted reports whether the key is that of an address or of its prefix, of which strangers can make any number.
func Counted(k *policy.Key) bool { return prefix.Address(k) != nil }

func anyAddress(bounds []policy.Bound) bool {
	for i := range bounds {
		if prefix.Address(&bounds[i].Key) != nil {
			return true
		}
	}
	return false
}

// plan decides how each bound is counted, and reports whether the request can be asked for as it is. Bounds of one
// address are counted in one way, but for its sliding logs: each is counted on its own.
func (b *Budget) plan(d *draft, bounds []policy.Bound, now limit.Micros) (asItIs bool) {
	asItIs = true
	for i := range bounds {
		key := &bounds[i].Key
		if prefix.Address(key) == nil {
			d.routes = append(d.routes, route{})
			continue
		}
		bytes := logBytes(&bounds[i])
		hash := b.hash(key, bytes)
		r, again := d.routeOf(hash)
		if !again {
			r = b.route(key, hash, bytes, now)
		}
		d.routes = append(d.routes, r)
		asItIs = asItIs && r.way == apart
	}
	return asItIs
}

func (d *draft) routeOf(hash uint64) (route, bool) {
	for i := range d.routes {
		if d.routes[i].way != asKnown && d.routes[i].hash == hash {
			return d.routes[i], true
		}
	}
	return route{}, false
}

// takeParts takes what this process decides first, because that waits for nothing and can be given back.
func (v *View) takeParts(ctx context.Context, d *draft, bounds []policy.Bound, statuses []decision.Status, now limit.Micros) error {
	clear(statuses)
	d.share(bounds)
	if len(d.here.bounds) > 0 {
		if err := v.local.TakeLocally(ctx, d.here.bounds, d.here.statuses); err != nil {
			return fmt.Errorf("count addresses in this process: %w", err)
		}
		if d.here.report(statuses) || len(d.asked.bounds) == 0 {
			return nil
		}
	}
	err := v.next.Take(ctx, d.asked.bounds, d.asked.statuses)
	denied := err != nil || d.asked.report(statuses)
	if denied && len(d.here.bounds) > 0 {
		if failed := v.local.RefundLocally(d.here.bounds, d.here.statuses); failed != nil {
			return fmt.Errorf("give back what addresses have spent in this process: %w", failed)
		}
		d.here.report(statuses)
	}
	if err == nil {
		v.budget.keep(d, bounds, statuses, now)
	}
	return err
}

// share shares the bounds out to those who are asked.
func (d *draft) share(bounds []policy.Bound) {
	for i := range bounds {
		r, b := &d.routes[i], bounds[i]
		switch r.way {
		case locally:
			d.here.add(i, b)
			continue
		case twice:
			d.asked.add(i, b)
		case byPrefix:
		default:
			d.asked.add(i, b)
			continue
		}
		b.Key = prefix.WithAddress(b.Key, r.prefix)
		d.asked.add(i, b)
	}
}

// report fills in the statuses of the request, for a bound that was counted twice the stricter one, and reports whether
// the request is denied.
func (p *part) report(statuses []decision.Status) (denied bool) {
	last := -1
	for j, i := range p.of {
		denied = denied || decision.Denies(&p.bounds[j], &p.statuses[j])
		if i != last || stricter(&p.statuses[j], &statuses[i]) {
			statuses[i] = p.statuses[j]
		}
		last = i
	}
	return denied
}

// stricter reports whether a status binds more than another of the same limit: one that denies, then one without an
// answer, then the one with less left.
func stricter(a, than *decision.Status) bool {
	if x, y := rank(a), rank(than); x != y {
		return x > y
	}
	if a.Source == decision.Unanswered || !a.Admits() {
		return a.Wait > than.Wait
	}
	return a.Remaining < than.Remaining
}

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

// keep remembers the keys of a request for as long as they live in the store.
func (b *Budget) keep(d *draft, bounds []policy.Bound, statuses []decision.Status, now limit.Micros) {
	for i := range d.routes {
		lasts := life(&bounds[i].Policy.Limit, &statuses[i])
		if lasts <= reserved {
			continue // as long as it is kept anyway
		}
		switch r := &d.routes[i]; r.way {
		case apart, twice:
			b.own.extend(r.hash, now, now+lasts)
		case byPrefix: // and not where it is counted twice: that is known of the address
			b.prefixes.extend(r.prefixHash, now, now+lasts)
		default:
		}
	}
}

// life returns how long the key of a bound may live in the store, after an answer. Where there is none, and the key may
// have been written, it is as long as most limits remember. A key lives for a quarter longer than its state means
// something.
func life(l *limit.Limit, s *decision.Status) limit.Micros {
	window := l.Spec().Window
	lasts := 2 * window
	switch {
	case s.Source == decision.Unanswered && s.Failure.MayHaveSpent():
	case s.Source == decision.Unanswered || s.Used == 0:
		return 0
	default:
		lasts = max(s.Reset-s.Now, 0)
		if l.Spec().Algorithm == limit.SlidingWindow {
			lasts += window // it counts in the next one too
		}
	}
	return lasts + lasts/4 + slack
}
