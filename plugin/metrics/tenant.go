package metrics

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

// fewLanes are compared one after the other, which is quicker than to look them up.
const fewLanes = 4

// maxBuckets is how many buckets of one tenant are remembered; what more there are is not shown.
const maxBuckets = 32

// tenant is what is counted under one value of the label org_id.
type tenant struct {
	name   string
	always bool // never leaves

	// Of a tenant that may leave, guarded by tenants.mu:
	score  float64   // requests lately: those of each minute before count half
	scored uint64    // how many requests are in score, decayed or not
	active time.Time // when requests were last found

	lanes  atomic.Pointer[lanes]
	adding sync.Mutex

	mu      sync.Mutex
	buckets []bucket
}

func newTenant(id string) *tenant {
	t := &tenant{name: strings.Clone(id)} // an id may be a part of something longer
	t.lanes.Store(&lanes{})
	return t
}

// laneKey is what a tenant's requests are told apart by, beside their results. Its names are not empty.
type laneKey struct {
	endpoint, tier string
	mode           policy.Mode
}

func (k laneKey) folded() laneKey { return laneKey{other, other, k.mode} }

// shown is k as a scrape shows it. Two keys that are not text may look the same.
func (k laneKey) shown() laneKey { return laneKey{labelValue(k.endpoint), labelValue(k.tier), k.mode} }

// lane counts requests by result.
type lane struct {
	laneKey
	results [decision.HardThrottled + 1]atomic.Uint64
}

// lanes are a tenant's. They are immutable, but for what they count.
type lanes struct {
	by  map[laneKey]*lane
	all []*lane // each once
}

// count counts a request of who's.
func (t *tenants) count(who *tenant, k laneKey, result decision.Result) {
	now := who.lanes.Load()
	for _, l := range now.all[:min(len(now.all), fewLanes)] {
		if l.laneKey == k {
			l.results[result].Add(1)
			return
		}
	}
	l, ok := now.by[k]
	if !ok && t.full(now) {
		l, ok = now.by[k.folded()]
	}
	if !ok {
		l = t.addLane(who, k)
	}
	l.results[result].Add(1)
}

// full tells whether one tenant, or all together, have as many lanes as they may.
func (t *tenants) full(of *lanes) bool { return len(of.by) >= maxSeries || t.lanes.Load() >= t.ceiling }

// addLane makes a lane for k, or finds the one that looks the same. At the ceiling names from configurations are other.
func (t *tenants) addLane(who *tenant, k laneKey) *lane {
	who.adding.Lock()
	defer who.adding.Unlock()
	now := who.lanes.Load()
	if t.full(now) {
		k = k.folded()
	}
	if l, ok := now.by[k]; ok {
		return l // added in the meantime
	}
	next := &lanes{by: make(map[laneKey]*lane, len(now.by)+2), all: now.all}
	maps.Copy(next.by, now.by)
	l, ok := now.by[k.shown()]
	if !ok {
		l = &lane{laneKey: k.shown()}
		next.all = append(slices.Clip(now.all), l)
	}
	next.by[k], next.by[l.laneKey] = l, l
	t.lanes.Add(int64(len(next.by) - len(now.by))) // a name that is shown as another takes room, too
	who.lanes.Store(next)
	return l
}

// total is how many requests were counted.
func (t *tenant) total() (n uint64) {
	for _, l := range t.lanes.Load().all {
		for i := range l.results {
			n += l.results[i].Load()
		}
	}
	return n
}

func (t *tenant) size() int { return len(t.lanes.Load().by) }

// bucket is a bucket of the tenant's own, as an answer of a store last told it.
type bucket struct {
	namespace, policy, endpoint string
	scope                       policy.Scope

	used, left, size int64        // tokens
	reset            limit.Micros // when nothing is used any more
}

// own tells whether a bound is about a bucket of the tenant's own, whose status is known. Of the buckets of its users
// there are too many, and this node's share of a limit says nothing about the limit.
func own(b *policy.Bound, s *decision.Status) bool {
	return (b.Policy.Scope == policy.Tenant || b.Policy.Scope == policy.TenantEndpoint) && b.Enforced() && exact(s)
}

// exact tells whether a status is of the whole limit.
func exact(s *decision.Status) bool {
	return s.Source == decision.Memory || s.Source == decision.Redis || s.Source == decision.Leased
}

// see remembers how full the tenant's buckets are, but that of a route which is invented. Where another request of the
// tenant is just doing that, it leaves it: they saw the same.
func (t *tenant) see(d *decision.Decision, invented bool) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	for i := range d.Resolution.Bounds {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if !own(bound, status) || invented && bound.Policy.ByRoute() {
			continue
		}
		if b := t.bucket(bound); b != nil {
			b.used, b.left, b.size, b.reset = status.Used, status.Remaining, capacity(bound), status.Reset
		}
	}
}

// bucket is the one that a bound spends from; nil if there is no room for it. t.mu is held.
func (t *tenant) bucket(of *policy.Bound) *bucket {
	p, endpoint := of.Policy, of.Key.Endpoint
	if endpoint == "" {
		endpoint = p.Endpoint
	}
	for i := range t.buckets {
		b := &t.buckets[i]
		if b.policy == p.Name && b.endpoint == endpoint && b.scope == p.Scope && b.namespace == of.Key.Namespace {
			return b
		}
	}
	if len(t.buckets) >= maxBuckets {
		return nil
	}
	t.buckets = append(t.buckets, bucket{namespace: of.Key.Namespace, policy: p.Name, endpoint: endpoint, scope: p.Scope})
	return &t.buckets[len(t.buckets)-1]
}

// capacity is what used tokens are a share of.
func capacity(b *policy.Bound) int64 { return b.Policy.Limit.Spec().Burst }

// forget ends the series of buckets of which nothing has been used for a while.
func (t *tenant) forget(now time.Time) {
	past := limit.Micros(now.Add(-turnEvery).UnixMicro())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buckets = slices.DeleteFunc(t.buckets, func(b bucket) bool { return b.reset < past })
}

// seen are the buckets as they are at an instant: one that nobody has spent from since its reset is unused.
func (t *tenant) seen(now limit.Micros) []bucket {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.buckets)
	for i := range all {
		if b := &all[i]; b.reset <= now {
			b.used, b.left = 0, b.size
		}
	}
	return all
}
