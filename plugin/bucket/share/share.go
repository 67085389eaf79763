// Package share keeps tenants to their fair shares of limits that they share: limits of the scopes global and endpoint
// with the field fair.
//
// A [Divider] counts on this node what each tenant demands of each such limit: what was admitted, and what the limit or
// a cap denied. Five times a second it reports the demand of the last second to the other nodes. One of them leads: it
// divides the limit (package fair) and publishes the result. Each node then caps each tenant, at the part of its share
// that is the node's part of its demand.
//
// A cap is a predicate: [Divider.Cap] compares, before any bucket is called, and a request that it denies spends
// nothing. [Divider.Count] charges what was admitted to the cap. A cap ends after a second, so without news of the
// leader the bucket alone decides. No request ever waits for another node.
//
// Small tenants have one cap together, because there may be more of them than fit into a message.
//
// Requests without a tenant share one share, so that many addresses do not make many shares.
//
// Elsewhere: the arithmetic (package fair), the messages' way through Redis (package redis), and which limits are
// shared (package policy).
package share

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/fair"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// Exchange carries messages between the nodes that share a limit, by the clock of a store that they share.
type Exchange interface {
	// ReportDemand keeps a node's report for a second, and returns the caps in force with the time that they have left;
	// none: nil. It makes the node lead if no other does. A leading node also gets the reports of all nodes, its own
	// included.
	ReportDemand(ctx context.Context, key *policy.Key, node string, report []byte) (fair.Answer, error)
	// PublishCaps puts caps in force for a second, if the node leads, and reports whether it does.
	PublishCaps(ctx context.Context, key *policy.Key, node string, caps []byte) (leads bool, err error)
}

// Options configures a Divider. Now must be set.
type Options struct {
	Now      func() limit.Micros // a monotonic clock
	Exchange Exchange            // nil: this node is alone
	Node     string              // names this node among the nodes of Exchange

	MaxTenants int // tenants that are counted, over all limits; 0: 100,000. Others count as one
}

const (
	defaultTenants = 100_000
	// maxLimits bounds the buckets that are shared fairly. Others have no caps.
	maxLimits = 1000
	// period is the interval of reports, and periods the number of them over which demand is measured.
	period, periods = limit.Second / 5, 5
	// capLife is the time for which caps are in force.
	capLife = limit.Second
	// shards is the number of locks of one limit.
	shards = 16
)

// Divider counts demand and enforces caps. It is safe for concurrent use. Make it with New.
type Divider struct {
	options Options
	seed    maphash.Seed

	mu      sync.Mutex // of those that replace pools
	pools   atomic.Pointer[map[policy.Key]*pool]
	tenants atomic.Int64 // of all pools
	capped  atomic.Uint64
	failed  atomic.Uint64
}

// pool is what tenants demand of one bucket.
type pool struct {
	key    policy.Key
	fair   atomic.Pointer[policy.Fair] // of the request that was counted last
	left   atomic.Int64                // tokens in the bucket, and 1; 0: not seen in this period
	shards [shards]shard
	others tenant // beyond the bound
	joint  tenant // its cap is the cap of all small tenants together

	until atomic.Int64              // the caps are in force until then
	caps  atomic.Pointer[fair.Caps] // the last ones; at first empty

	// Of Step alone.
	rushes  map[fair.ID]rush      // at all nodes
	ended   limit.Micros          // the last period
	lengths [periods]limit.Micros // of the last periods
	at      int                   // the oldest of them

	leads atomic.Bool  // this node divides the limit
	over  atomic.Int64 // tenants that demand more than their caps
}

func (p *pool) inForce(now limit.Micros) bool { return int64(now) < p.until.Load() }

type shard struct {
	mu      sync.RWMutex
	tenants map[string]*tenant // nil: the pool is dropped
}

// New returns a store without demand.
func New(o Options) *Divider {
	o.MaxTenants = cmp.Or(o.MaxTenants, defaultTenants)
	s := &Divider{options: o, seed: maphash.MakeSeed()}
	s.pools.Store(&map[policy.Key]*pool{})
	return s
}

// Cap implements admit.Shares.
func (s *Divider) Cap(d *decision.Decision, at limit.Micros) (take int) {
	bounds, now, denied := d.Resolution.Bounds, s.options.Now(), false
	take = len(bounds)
	for i := 0; i < take; {
		wait := s.wait(d, &bounds[i], now)
		status := decision.Status{
			Status: limit.Status{Used: bounds[i].Policy.Limit.Capacity(), Reset: at + wait},
			Wait:   wait, Now: at, Source: decision.FairShare,
		}
		switch {
		case wait == 0:
			i++
		case bounds[i].Enforced():
			d.Statuses[i], denied = status, true
			i++
		default: // nothing before take is decided yet, but what denies before i
			take--
			bound := bounds[i]
			copy(bounds[i:take], bounds[i+1:take+1])
			bounds[take], d.Statuses[take] = bound, status
		}
	}
	if denied {
		return 0
	}
	return take
}

// wait returns the time until the cap of a bound admits a request, at most a second; 0: now.
func (s *Divider) wait(d *decision.Decision, b *policy.Bound, now limit.Micros) limit.Micros {
	if !counts(b) {
		return 0
	}
	p := (*s.pools.Load())[b.Key]
	if p == nil || !p.inForce(now) {
		return 0
	}
	t := s.find(p, tenantOf(d))
	switch {
	case t == nil:
		return p.joint.wait(now)
	case t.small.Load():
		return max(t.wait(now), p.joint.wait(now))
	}
	return t.wait(now)
}

// counts reports whether a bound demands tokens of a limit that is shared fairly. A cost that the limit never holds is
// no demand.
func counts(b *policy.Bound) bool {
	return b.Policy.Fair != nil && b.Cost > 0 && b.Cost <= b.Policy.Limit.Capacity()
}

// tenantOf returns the tenant of a request, or "" if it has none.
func tenantOf(d *decision.Decision) string {
	if d.Identity.Tenant.Kind != identity.Tenant {
		return ""
	}
	return d.Identity.Tenant.ID
}

// weightOf returns the weight of the tenant of a request. Requests without a tenant have the default, even where the
// limits of a tier apply to them.
func weightOf(d *decision.Decision, rules *policy.Fair) int64 {
	if tenantOf(d) == "" {
		return max(rules.Record.Default, 1)
	}
	return rules.Record.Weight(d.Resolution.Tier)
}

// Dividers holds the dividers of the pools of a config, by their numbers. It implements admit.Shares.
type Dividers []*Divider

// Cap implements admit.Shares.
func (all Dividers) Cap(d *decision.Decision, at limit.Micros) (take int) {
	return all[d.Resolution.Pool].Cap(d, at)
}

// Count implements admit.Shares.
func (all Dividers) Count(d *decision.Decision) { all[d.Resolution.Pool].Count(d) }

// Count implements admit.Shares.
func (s *Divider) Count(d *decision.Decision) {
	now := s.options.Now()
	for i := range d.Resolution.Bounds {
		if b := &d.Resolution.Bounds[i]; counts(b) {
			s.count(d, b, &d.Statuses[i], now)
		}
	}
}

func (s *Divider) count(d *decision.Decision, b *policy.Bound, status *decision.Status, now limit.Micros) {
	p := (*s.pools.Load())[b.Key]
	if p == nil {
		if p = s.addPool(&b.Key, b.Policy.Fair, now); p == nil {
			return
		}
	}
	if b.Override == 0 && b.Penalty == 0 {
		if p.fair.Load() != b.Policy.Fair {
			p.fair.Store(b.Policy.Fair)
		}
		switch status.Source {
		case decision.Memory, decision.Redis, decision.Leased:
			p.left.Store(status.Remaining + 1)
		}
	}
	name := tenantOf(d)
	t, added := s.find(p, name), false
	if t == nil {
		t, added = s.addTenant(p, name)
	}
	if weight := weightOf(d, b.Policy.Fair); t.weight.Load() != weight {
		t.weight.Store(weight)
	}
	if added {
		p.capNew(t, now)
	}
	switch {
	case status.Source == decision.FairShare:
		t.capped.Add(b.Cost)
		s.capped.Add(1)
	case status.Source == decision.Unanswered && status.Failure == decision.NoFailure:
		t.elsewhere.Add(b.Cost) // another bound denied before
	case status.Source != decision.Unanswered && !status.Admits():
		t.denied.Add(b.Cost)
	case d.Denied():
		t.elsewhere.Add(b.Cost)
	default:
		if t.admitted.Add(b.Cost); !p.inForce(now) {
			return
		}
		if t.charge(b.Cost, now); t.small.Load() {
			p.joint.charge(b.Cost, now)
		}
	}
}

func (s *Divider) shardOf(p *pool, name string) *shard {
	return &p.shards[maphash.String(s.seed, name)%shards]
}

// find returns a tenant that is counted, or nil.
func (s *Divider) find(p *pool, name string) *tenant {
	in := s.shardOf(p, name)
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.tenants[name]
}
