package admit

import (
	"context"
	"fmt"
	"slices"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
)

// maxBuckets is how many buckets parts may spend from together: what one call of Redis can take.
const maxBuckets = 127

// ErrTooMany reports that the limits of all parts have more than 127 buckets. Then nothing is decided.
var ErrTooMany = fmt.Errorf("their limits have more than %d buckets together", maxBuckets)

// Part is one of several requests that are admitted together or not at all, such as a descriptor of Envoy's, and the
// decision about it.
type Part struct {
	Facts  CallerRequest
	Asks   bool          // it spends nothing, and is denied if what it costs has no room
	Beside *policy.Bound // one more limit, without a namespace, or [limit.Nothing]; nil: none
	Exchange

	pool *pool // of what the part spends, or asks
	take int   // bounds that are in the pool; the others are decided without their buckets
	fair bool  // some bound is shared fairly
}

// Joint is several requests that are admitted together or not at all. Its memory may serve further calls, one after
// another.
type Joint struct {
	Parts []Part // at least one

	whole        Exchange
	dr           *Decider
	policies     *resolve.Plan
	now          limit.Micros
	asked, spent pool
	denied       bool         // some part is denied, so no more bucket is asked
	took         limit.Micros // duration of the takes
}

// AdmitAll decides about all parts: all spend, or none. A bucket that several parts name is charged once, the highest
// of their costs. Each part has the decision of its own limits; the exchange that AdmitAll returns has the decision and
// the response of the whole, until the next call. peeker answers the parts that ask. AdmitAll returns errors as
// [Decider.Admit] does, then only the response of the whole is valid; and ErrTooMany, then nothing is.
//
// Observers receive the decision of each part that spends; if the whole is denied, of the parts that deny it. Several
// parts are tried beside no candidate, and what they reserve is not settled.
func (dr *Decider) AdmitAll(ctx context.Context, peeker Peeker, j *Joint) (*Exchange, error) {
	parts, whole := j.Parts, &j.whole
	if p := &parts[0]; len(parts) == 1 && !p.Asks && p.Beside == nil {
		return &p.Exchange, dr.Admit(ctx, &p.Facts, &p.Exchange)
	}
	j.dr, j.policies, j.now, j.denied = dr, dr.Policies.Load(), readClock(dr.Now), false
	j.asked.reset()
	j.spent.reset()
	var err error
	for i := 0; i < len(parts) && err == nil; i++ {
		err = j.resolve(ctx, &parts[i])
	}
	if len(j.asked.bounds) > maxBuckets || len(j.spent.bounds) > maxBuckets {
		return whole, ErrTooMany
	}
	if err == nil {
		j.gather()
		err = j.take(ctx, peeker)
	}
	if err != nil {
		dr.Fault(whole)
		return whole, err
	}
	j.combine(&whole.Decision)
	dr.Renderer.Render(&whole.Decision, false, &whole.Response)
	for i := range parts {
		p := &parts[i]
		if p.Asks || whole.Decision.Denied() && !p.Decision.Denied() {
			continue
		}
		_, _ = dr.readAtDenial(ctx, &p.Facts, &j.policies.Rules, &p.Exchange) // a caller's facts are always there
		for _, observer := range dr.Observers {
			observer.Observe(&p.Decision)
		}
	}
	return whole, nil
}

// pool has the bounds of several parts, each bucket once.
type pool struct {
	bounds   []policy.Bound
	statuses []decision.Status
	places   map[policy.Key]int // in bounds
}

func (p *pool) reset() {
	if p.places == nil {
		p.places = map[policy.Key]int{}
	}
	clear(p.places)
	p.bounds = p.bounds[:0]
}

// add adds a bound. Of two limits of one bucket it keeps the enforced one, then the smaller one.
func (p *pool) add(b policy.Bound) {
	i, known := p.places[b.Key]
	if !known {
		p.places[b.Key] = len(p.bounds)
		p.bounds = append(p.bounds, b)
		return
	}
	kept := &p.bounds[i]
	b.Cost = max(b.Cost, kept.Cost)
	kept.Cost = b.Cost
	smaller := b.Policy.Limit.Capacity() < kept.Policy.Limit.Capacity()
	if b.Enforced() && !kept.Enforced() || b.Enforced() == kept.Enforced() && smaller {
		*kept = b
	}
}

// resolve identifies a part and adds its bounds to a pool.
func (j *Joint) resolve(ctx context.Context, p *Part) error {
	d := &p.Decision
	p.Request.Reset()
	d.Reset()
	if d.Exchange == 0 {
		d.Exchange = exchanges.Add(1)
	}
	if err := Identify(ctx, &p.Facts, &j.policies.Rules, &p.Request, &d.Identity); err != nil {
		return err
	}
	plan := j.policies.ForTenant(d.Identity.Tenant.ID)
	d.Mode, d.PolicyVersion = plan.Mode(), plan.Version()
	wait, err := j.dr.Meta.wait(ctx, &d.Identity)
	if err != nil {
		return fmt.Errorf("take the meta limit: %w", err)
	}
	plan.ResolveAt(&d.Identity, j.now, &d.Resolution)
	checkIdentity(d, j.now, wait)
	if p.Beside != nil && !d.Denied() && !d.Resolution.Exempt {
		p.Beside.Key.Namespace, p.Beside.Pool = plan.Namespace(), d.Resolution.Pool
		d.Resolution.Bounds = append(d.Resolution.Bounds, *p.Beside)
	}
	d.Grow()
	p.take = len(d.Statuses)
	p.fair = d.Resolution.Fair && j.dr.Shares != nil && p.take > 0
	switch last := p.take - 1; {
	case last >= 0 && d.Resolution.Bounds[last].Policy.Limit.Capacity() == 0:
		d.Statuses[last] = decision.Status{Wait: limit.Never, Now: j.now, Source: decision.Memory}
		d.Statuses[last].Reset, p.take = j.now, last
	case p.fair:
		p.take = j.dr.Shares.Cap(d, j.now)
	}
	if p.pool = &j.spent; p.Asks {
		p.pool = &j.asked
	}
	for _, b := range d.Resolution.Bounds[:p.take] {
		p.pool.add(b)
	}
	j.denied = j.denied || d.Denied() || denies(d.Resolution.Bounds, d.Statuses)
	return nil
}

// gather moves what parts without a tenant spend to the pool of Redis of the first part that has a tenant, so that one
// call takes all, and no other pool decides about that tenant.
func (j *Joint) gather() {
	isTenants := func(p *Part) bool { return p.Decision.Identity.Tenant.Kind == identity.Tenant }
	var first *Part
	areSpread := false
	for i := range j.Parts {
		p := &j.Parts[i]
		if first == nil && isTenants(p) {
			first = p
		}
		areSpread = areSpread || p.Decision.Resolution.Pool != j.Parts[0].Decision.Resolution.Pool
	}
	if first == nil || !areSpread {
		return
	}
	for i := range j.Parts {
		p := &j.Parts[i]
		if isTenants(p) {
			continue
		}
		for k := range p.take {
			place := p.pool.places[p.Decision.Resolution.Bounds[k].Key]
			p.pool.bounds[place].Pool = first.Decision.Resolution.Pool
		}
	}
}

// denies reports whether a bound denies.
func denies(bounds []policy.Bound, statuses []decision.Status) bool {
	for i := range statuses {
		if decision.Denies(&bounds[i], &statuses[i]) {
			return true
		}
	}
	return false
}

// take reads what is asked, and then spends all, unless a part is denied.
func (j *Joint) take(ctx context.Context, peeker Peeker) error {
	started := readClock(j.dr.Elapsed)
	for _, from := range []struct {
		*pool
		ask TakeFunc
	}{{&j.asked, peeker.Peek}, {&j.spent, j.dr.Buckets.Take}} {
		n := len(from.bounds)
		from.pool.statuses = slices.Grow(from.statuses[:0], n)[:n]
		clear(from.statuses)
		if n == 0 || j.denied {
			continue
		}
		if err := from.ask(ctx, from.bounds, from.statuses); err != nil {
			return fmt.Errorf("take %d bounds of several requests: %w", n, err)
		}
		j.denied = denies(from.bounds, from.statuses)
	}
	j.took = readClock(j.dr.Elapsed) - started
	return nil
}

// combine decides about each part, and about the whole: d.
func (j *Joint) combine(d *decision.Decision) {
	d.Reset()
	d.Mode, d.PolicyVersion = j.policies.Mode(), j.policies.Version()
	d.Resolution.Bounds = append(append(d.Resolution.Bounds[:0], j.asked.bounds...), j.spent.bounds...)
	d.Statuses = append(append(d.Statuses[:0], j.asked.statuses...), j.spent.statuses...)
	var other *decision.Decision // of a part that is denied for another reason than its bounds
	for i := range j.Parts {
		p := &j.Parts[i]
		own := &p.Decision
		if own.Denied() {
			if other == nil || own.RetryAfter > other.RetryAfter {
				other = own
			}
			continue
		}
		p.pool.read(own, p.take)
		own.Took = j.took
		if own.Combine(); p.fair && !p.Asks {
			j.dr.Shares.Count(own)
		}
		own.RecordExemption()
		d.Resolution.Bounds = append(d.Resolution.Bounds, own.Resolution.Bounds[p.take:]...)
		d.Statuses = append(d.Statuses, own.Statuses[p.take:]...)
	}
	if other == nil {
		d.Combine()
		return
	}
	d.Deny(other.Reason)
	d.Statuses, d.RetryAfter = d.Statuses[:0], other.RetryAfter
}

// read copies what decided about the first n bounds of a part. What a bucket was charged is only said to the first
// part that names it.
func (p *pool) read(d *decision.Decision, n int) {
	for i := range n {
		at := p.places[d.Resolution.Bounds[i].Key]
		d.Resolution.Bounds[i], d.Statuses[i] = p.bounds[at], p.statuses[at]
		p.statuses[at].Charged = false
	}
}
