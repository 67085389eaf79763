package share

import (
	"maps"
	"math"
	"strings"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// tenant is what one tenant demands of one bucket at this node, and its cap.
type tenant struct {
	id     fair.ID
	weight atomic.Int64

	// Tokens of this period.
	admitted  atomic.Int64
	denied    atomic.Int64 // by the bucket
	capped    atomic.Int64 // denied by the cap
	elsewhere atomic.Int64 // denied by other limits

	small     atomic.Bool  // it spends from the joint cap too
	perSecond atomic.Int64 // the cap in thousandths of tokens; 0: none
	paidAt    atomic.Int64 // when the cap has paid for all that was charged

	// Of Step alone.
	last [periods]demand
	rush rush // the demand with which it exceeded its share
}

// demand is what a tenant demanded in a period, in tokens.
type demand struct{ tokens, usable float64 }

const (
	// capBurst is what a tenant can save of its cap, and firstBurst what it has when the cap begins.
	capBurst, firstBurst = limit.Second, limit.Second / 5
	// maxWait bounds the wait of a denial by a cap: then there are other caps.
	maxWait = limit.Second
	// maxDebt bounds what one request, or a smaller cap, adds to the time in which a cap pays for what was charged.
	maxDebt = float64(24 * 3600 * limit.Second)
	// growth is by how much more than was admitted a tenant might use whose other limits deny.
	growth = 1.25
)

// wait returns the time until the cap admits a request, 0 if it does now. A request needs a cap that is not overspent,
// and may overspend it: so one of any cost is admitted.
func (t *tenant) wait(now limit.Micros) limit.Micros {
	if t.perSecond.Load() == 0 {
		return 0
	}
	return min(max(limit.Micros(t.paidAt.Load())-now-capBurst+1, 0), maxWait)
}

// charge charges an admitted request to the cap.
func (t *tenant) charge(cost int64, now limit.Micros) {
	perSecond := t.perSecond.Load()
	if perSecond == 0 {
		return
	}
	takes := int64(min(float64(cost)*1000*float64(limit.Second)/float64(perSecond), maxDebt))
	for {
		paid := t.paidAt.Load()
		if t.paidAt.CompareAndSwap(paid, max(paid, int64(now))+takes) {
			return
		}
	}
}

// setCap sets the cap to tokens per second; 0: none. What is overspent stays the same in tokens: a larger cap pays for
// it in less time.
func (t *tenant) setCap(tokens float64, now limit.Micros) {
	thousandths := int64(min(max(tokens*1000, 1), 1e18))
	if tokens == 0 {
		thousandths = 0
	}
	before := t.perSecond.Swap(thousandths)
	if before == 0 {
		t.paidAt.Store(int64(now + capBurst - firstBurst))
		return
	}
	for thousandths != 0 && thousandths != before {
		paid, free := t.paidAt.Load(), int64(now+capBurst)
		overspent := float64(paid-free) * float64(before) / float64(thousandths)
		if paid <= free || t.paidAt.CompareAndSwap(paid, free+int64(min(overspent, maxDebt))) {
			return
		}
	}
}

// endPeriod moves what was counted in this period into the last ones, in the place of the oldest. It returns the
// demand of all of them in tokens.
//
// If other limits deny a part of what a cap lets through, they would deny more of what it does not. Then what the
// tenant can use is what was admitted, and a little more.
func (t *tenant) endPeriod(at int) (sum demand) {
	through := float64(t.admitted.Swap(0) + t.denied.Swap(0))
	d := demand{tokens: through + float64(t.capped.Swap(0))}
	if d.usable = d.tokens; t.elsewhere.Swap(0) > 0 {
		d.usable = min(d.tokens, growth*through)
	}
	t.last[at] = d
	for _, one := range t.last {
		sum.tokens, sum.usable = sum.tokens+one.tokens, sum.usable+one.usable
	}
	return sum
}

// addPool adds the pool of a bucket, unless there are too many.
func (s *Divider) addPool(key *policy.Key, rules *policy.Fair, now limit.Micros) *pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pools := *s.pools.Load()
	if p := pools[*key]; p != nil || len(pools) >= maxLimits {
		return p
	}
	p := &pool{key: key.Clone(), ended: now}
	p.fair.Store(rules)
	p.caps.Store(new(fair.Caps))
	p.others.small.Store(true)
	for i := range p.shards {
		p.shards[i].tenants = map[string]*tenant{}
	}
	more := maps.Clone(pools)
	more[p.key] = p
	s.pools.Store(&more)
	return p
}

// addTenant adds a tenant to a pool. If there are too many, or the pool is dropped, it returns the one that stands for
// all others.
func (s *Divider) addTenant(p *pool, name string) (t *tenant, added bool) {
	in := s.shardOf(p, name)
	in.mu.Lock()
	defer in.mu.Unlock()
	if t := in.tenants[name]; t != nil {
		return t, false
	}
	if in.tenants == nil {
		return &p.others, false
	}
	if s.tenants.Add(1) > int64(s.options.MaxTenants) {
		s.tenants.Add(-1)
		return &p.others, false
	}
	t = &tenant{id: fair.IDOf(name)}
	t.small.Store(true)
	in.tenants[strings.Clone(name)] = t
	return t, true
}

// capNew caps a tenant that no node has reported, if there are caps.
func (p *pool) capNew(t *tenant, now limit.Micros) {
	if caps := p.caps.Load(); p.inForce(now) && !math.IsInf(caps.Level, 1) {
		t.setCap(caps.At(p.limit(), t.id, float64(t.weight.Load()), 0), now)
	}
}

// rush is what a tenant demanded beyond its share a little while ago, in tokens per second.
type rush struct {
	tokens float64
	at     limit.Micros
}

const (
	// halfRush is the time in which half of a rush is forgotten, and rushLife that in which all of it is.
	halfRush, rushLife = 2 * limit.Second, 10 * limit.Second
)

// ended reports whether the rush is forgotten.
func (r rush) ended(now limit.Micros) bool { return r.tokens == 0 || now-r.at > rushLife }

// left returns what is not forgotten yet.
func (r rush) left(now limit.Micros) float64 {
	if r.ended(now) {
		return 0
	}
	return r.tokens * math.Exp2(-float64(now-r.at)/float64(halfRush))
}

// with returns the rush after a demand beyond the share.
func (r rush) with(tokens float64, now limit.Micros) rush { return rush{max(r.left(now), tokens), now} }

// endPeriods ends the period of all tenants of a pool, drops those that are idle, and calls visit for the others.
func (s *Divider) endPeriods(p *pool, now limit.Micros, visit func(*tenant, demand)) {
	for i := range p.shards {
		in := &p.shards[i]
		in.mu.Lock()
		for name, t := range in.tenants {
			sum := t.endPeriod(p.at)
			if sum.tokens == 0 && t.rush.ended(now) {
				delete(in.tenants, name) // a request that has found it already is not counted
				s.tenants.Add(-1)
				continue
			}
			visit(t, sum)
		}
		in.mu.Unlock()
	}
}
