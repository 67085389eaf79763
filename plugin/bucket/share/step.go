package share

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

// Run ends periods until ctx ends, which is not an error.
func (s *Divider) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Duration(period) * time.Microsecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.Step(ctx)
		}
	}
}

// exchanges is the number of limits whose messages are under way at once.
const exchanges = 16

// Step ends a period: it reports the demand of all limits, and sets their caps. It is not called concurrently with
// itself.
func (s *Divider) Step(ctx context.Context) {
	var running errgroup.Group
	running.SetLimit(exchanges)
	for _, p := range *s.pools.Load() {
		now := s.options.Now()
		report, tenants := s.endPeriod(p, now)
		if len(tenants) == 0 && report.Small.Tokens == 0 {
			s.drop(p)
			continue
		}
		running.Go(func() error {
			s.exchange(ctx, p, &report, tenants, now)
			return nil
		})
	}
	_ = running.Wait() // of no error
}

// drop removes a pool without tenants, and those that requests have added to it since.
func (s *Divider) drop(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fewer := maps.Clone(*s.pools.Load())
	delete(fewer, p.key)
	s.pools.Store(&fewer)
	for i := range p.shards {
		in := &p.shards[i]
		in.mu.Lock()
		s.tenants.Add(-int64(len(in.tenants)))
		in.tenants = nil
		in.mu.Unlock()
	}
}

// counted is a tenant with its demand per second.
type counted struct {
	*tenant
	fair.Demand
	named bool // in the node's report
}

// endPeriod ends the period of a pool, and returns the demand per second of all its tenants.
func (s *Divider) endPeriod(p *pool, now limit.Micros) (fair.Report, []counted) {
	p.lengths[p.at], p.ended = max(now-p.ended, 0), now
	length := limit.Micros(0)
	for _, one := range p.lengths {
		length += one
	}
	seconds := float64(max(length, limit.Second)) / float64(limit.Second)
	var tenants []counted
	s.endPeriods(p, now, func(t *tenant, sum demand) {
		weight := float64(max(t.weight.Load(), 1))
		d := fair.Demand{Tokens: sum.tokens / seconds, Usable: sum.usable / seconds, Weight: weight}
		tenants = append(tenants, counted{tenant: t, Demand: d})
	})
	others := p.others.endPeriod(p.at)
	p.at = (p.at + 1) % periods
	r := fair.Report{Left: float64(p.left.Swap(0) - 1), Named: map[fair.ID]fair.Demand{}}
	r.Small = fair.Demand{Tokens: others.tokens / seconds, Usable: others.usable / seconds}
	if others.tokens > 0 {
		r.Small.Weight = 1
	}
	slices.SortFunc(tenants, func(a, b counted) int { return cmp.Compare(b.Tokens, a.Tokens) })
	l := p.limit()
	small := l.Small() / float64(max(p.caps.Load().Nodes, 1)) // of the nodes that reported last
	for i := range tenants {
		t := &tenants[i]
		if t.named = i < fair.MaxNamed && t.Tokens >= small; t.named {
			r.Named[t.id] = t.Demand
		} else {
			r.Small = r.Small.Plus(t.Demand)
		}
	}
	return r, tenants
}

// exchange reports the demand of a pool, divides the limit if this node leads, and sets the caps.
func (s *Divider) exchange(ctx context.Context, p *pool, r *fair.Report, tenants []counted, now limit.Micros) {
	if s.options.Exchange == nil {
		p.leads.Store(true)
		p.setCaps(p.merge([]fair.Report{*r}, now), r, tenants, now, now+capLife)
		return
	}
	answer, err := s.options.Exchange.ReportDemand(ctx, &p.key, s.options.Node, r.Append(nil))
	leads := err == nil && answer.Leads
	defer func() { p.leads.Store(leads) }()
	var caps fair.Caps
	switch {
	case err != nil:
	case answer.Leads:
		caps = s.divide(p, answer.Reports, now)
		leads, err = s.options.Exchange.PublishCaps(ctx, &p.key, s.options.Node, caps.Append(nil))
		if answer.Lasts = time.Second; err == nil && !leads {
			return // another node leads now
		}
	case answer.Caps == nil:
		return
	default:
		caps, err = fair.ParseCaps(answer.Caps)
	}
	if err != nil {
		s.failed.Add(1)
		return
	}
	p.setCaps(caps, r, tenants, now, now+limit.Micros(answer.Lasts.Microseconds()))
}

// divide divides the limit of a pool by the reports of all nodes. A report that it cannot read does not count.
func (s *Divider) divide(p *pool, messages [][]byte, now limit.Micros) fair.Caps {
	reports := make([]fair.Report, 0, len(messages))
	for _, message := range messages {
		if report, err := fair.ParseReport(message); err == nil {
			reports = append(reports, report)
		} else {
			s.failed.Add(1)
		}
	}
	return p.merge(reports, now)
}

// merge divides the limit by reports. If there are no caps, the tenants that rushed a little while ago keep theirs.
func (p *pool) merge(reports []fair.Report, now limit.Micros) fair.Caps {
	caps := fair.Merge(p.limit(), reports)
	if !math.IsInf(caps.Level, 1) {
		return caps
	}
	for id, r := range p.rushes {
		if tokens := r.left(now); tokens > caps.Free {
			caps.Named[id] = tokens
		}
	}
	return caps
}

// remember adds the tenants that exceed their shares to those that rush, and their rushes to the caps: nodes divide a
// share by them, because the reports of a demand that grows are late. All nodes remember, so that each can lead.
func (p *pool) remember(caps *fair.Caps, now limit.Micros) {
	if p.rushes == nil {
		p.rushes = map[fair.ID]rush{}
	}
	maps.DeleteFunc(p.rushes, func(_ fair.ID, r rush) bool { return r.ended(now) })
	for id, tokens := range caps.Named {
		p.rushes[id] = p.rushes[id].with(tokens, now)
		caps.Named[id] = p.rushes[id].tokens
	}
}

func (p *pool) limit() fair.Limit {
	rules := p.fair.Load()
	return fair.Limit{Rate: rules.Rate, Capacity: rules.Capacity, Left: -1}
}

// setCaps sets the caps of all tenants at this node, and the cap of its small ones together.
func (p *pool) setCaps(caps fair.Caps, r *fair.Report, tenants []counted, now, until limit.Micros) {
	l, over, joint, capped := p.limit(), int64(0), r.Small.Tokens, !math.IsInf(caps.Level, 1)
	if capped {
		p.remember(&caps, now)
	}
	for i := range tenants {
		t := &tenants[i]
		if !capped {
			t.setCap(caps.AfterRush(l, t.id, t.Usable, t.rush.left(now)), now)
			continue
		}
		demand := t.Tokens
		if _, rushes := caps.Named[t.id]; rushes {
			t.rush = t.rush.with(t.Tokens, now)
			demand = t.rush.tokens
		}
		tokens := caps.At(l, t.id, t.Weight, demand)
		if t.setCap(tokens, now); t.Tokens > tokens {
			over++
		}
		shared := t.named && caps.SpendsJointly(l, t.Weight)
		if t.small.Store(!t.named || shared); shared {
			joint += t.Tokens
		}
	}
	p.joint.setCap(caps.JointAt(l, joint), now)
	p.over.Store(over)
	p.caps.Store(&caps)
	p.until.Store(int64(until))
}

// Stats holds the numbers of a store.
type Stats struct {
	Denied  uint64 // requests that caps denied, or would have in shadow
	Failed  uint64 `metric:"fair_share_failed_exchanges_total"` // exchanges with other nodes
	Limits  int    `metric:"fair_share_limits"`                 // buckets with demand
	Leads   int    `metric:"fair_share_leading"`                // of those, the ones whose limits this node divides
	Tenants int    `metric:"fair_share_capped_tenants"`         // that demand more of a bucket than their caps
}

// Stats returns the numbers.
func (s *Divider) Stats() Stats {
	pools := *s.pools.Load()
	n := Stats{Denied: s.capped.Load(), Failed: s.failed.Load(), Limits: len(pools)}
	for _, p := range pools {
		if p.leads.Load() {
			n.Leads++
		}
		if p.inForce(s.options.Now()) {
			n.Tenants += int(p.over.Load())
		}
	}
	return n
}
