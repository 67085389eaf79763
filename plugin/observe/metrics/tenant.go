package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// fewLanes is the number of lanes that are compared one by one, which is faster than a lookup.
const fewLanes = 4

// maxBuckets bounds the buckets of one tenant that have series.
const maxBuckets = 32

// tenant holds what is counted under one value of the label org_id.
type tenant struct {
	name   string
	always bool // never loses its label

	// Of a tenant that may lose its label, guarded by tenants.mu:
	score  float64   // recent requests: those of each earlier minute count half
	scored uint64    // total at the last update of score
	active time.Time // when new requests were last found

	lanes        atomic.Pointer[lanes]
	addMu        sync.Mutex
	shadowDenied atomic.Uint64 // requests

	mu      sync.Mutex
	buckets []bucket
}

func newTenant(id string) *tenant {
	t := &tenant{name: strings.Clone(id)} // an id may be a part of something longer
	t.lanes.Store(&lanes{})
	return t
}

// laneKey identifies a lane of a tenant's requests. Its names are not empty.
type laneKey struct {
	endpoint, tier string
	mode           policy.Mode
}

func (k laneKey) folded() laneKey { return laneKey{other, other, k.mode} }

// asLabels returns k with valid label values. Two keys that are not UTF-8 may become the same.
func (k laneKey) asLabels() laneKey {
	return laneKey{labelValue(k.endpoint), labelValue(k.tier), k.mode}
}

type lane struct {
	laneKey
	results [decision.Results]atomic.Uint64
}

// lanes holds the lanes of a tenant. It is immutable, except for the counts.
type lanes struct {
	by  map[laneKey]*lane
	all []*lane // each once
}

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

// full reports whether one tenant, or all together, have reached their maximum of lanes.
func (t *tenants) full(l *lanes) bool { return len(l.by) >= maxSeries || t.lanes.Load() >= t.ceiling }

// addLane returns a lane for k, or one with the same labels. At the maximum names from configurations become other.
func (t *tenants) addLane(who *tenant, k laneKey) *lane {
	who.addMu.Lock()
	defer who.addMu.Unlock()
	now := who.lanes.Load()
	if t.full(now) {
		k = k.folded()
	}
	if l, ok := now.by[k]; ok {
		return l // another goroutine was faster
	}
	next := &lanes{by: make(map[laneKey]*lane, len(now.by)+2), all: now.all}
	maps.Copy(next.by, now.by)
	l, ok := now.by[k.asLabels()]
	if !ok {
		l = &lane{laneKey: k.asLabels()}
		next.all = append(slices.Clip(now.all), l)
	}
	next.by[k], next.by[l.laneKey] = l, l
	t.lanes.Add(int64(len(next.by) - len(now.by))) // a key with replaced labels takes room, too
	who.lanes.Store(next)
	return l
}

func (t *tenant) total() (n uint64) {
	for _, l := range t.lanes.Load().all {
		for i := range l.results {
			n += l.results[i].Load()
		}
	}
	return n
}

func (t *tenant) size() int { return len(t.lanes.Load().by) }

// bucket holds the state of one of the tenant's own buckets at its last request.
type bucket struct {
	namespace, policy, endpoint string
	scope                       policy.Scope

	used, left, size int64        // tokens
	reset            limit.Micros // when it is full again
}

// ownBucket reports whether a bound belongs to the tenant as a whole and its status covers the whole limit. Buckets of
// users are too many for series.
func ownBucket(b *policy.Bound, s *decision.Status) bool {
	return (b.Policy.Scope == policy.Tenant || b.Policy.Scope == policy.TenantEndpoint) && b.Enforced() &&
		countsWhole(s)
}

// countsWhole reports whether a status covers the whole limit, not this node's share.
func countsWhole(s *decision.Status) bool {
	return s.Source == decision.Memory || s.Source == decision.Redis || s.Source == decision.Leased
}

// updateBuckets records the state of the tenant's buckets, except that of an unknown route. It skips the request while
// another one of the tenant does the same.
func (t *tenant) updateBuckets(d *decision.Decision, unknownRoute bool) {
	if !t.mu.TryLock() {
		return
	}
	defer t.mu.Unlock()
	for i := range d.Resolution.Bounds {
		bound, status := &d.Resolution.Bounds[i], &d.Statuses[i]
		if !ownBucket(bound, status) || unknownRoute && bound.Policy.ByRoute() {
			continue
		}
		if b := t.bucket(bound); b != nil {
			b.used, b.left, b.size, b.reset = status.Used, status.Remaining, capacity(bound), status.Reset
		}
	}
}

// bucket returns the bucket of a bound, or nil if there is no room for it. t.mu is held.
func (t *tenant) bucket(bound *policy.Bound) *bucket {
	p, endpoint := bound.Policy, cmp.Or(bound.Key.Endpoint, bound.Policy.Endpoint)
	for i := range t.buckets {
		b := &t.buckets[i]
		if b.policy == p.Name && b.endpoint == endpoint && b.scope == p.Scope && b.namespace == bound.Key.Namespace {
			return b
		}
	}
	if len(t.buckets) >= maxBuckets {
		return nil
	}
	t.buckets = append(t.buckets,
		bucket{namespace: bound.Key.Namespace, policy: p.Name, endpoint: endpoint, scope: p.Scope})
	return &t.buckets[len(t.buckets)-1]
}

func capacity(b *policy.Bound) int64 { return b.Policy.Limit.Spec().Burst }

// dropIdleBuckets ends the series of buckets that have been full for a while.
func (t *tenant) dropIdleBuckets(now time.Time) {
	past := limit.Micros(now.Add(-rotateEvery).UnixMicro())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buckets = slices.DeleteFunc(t.buckets, func(b bucket) bool { return b.reset < past })
}

// bucketsAt returns the buckets at an instant: one past its reset is full.
func (t *tenant) bucketsAt(now limit.Micros) []bucket {
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

const (
	orgLabel      = "org_id"
	endpointLabel = "endpoint"
)

var (
	requests = prometheus.NewDesc(prefix+"requests_total",
		"Requests decided, by tenant, endpoint, tier of the limits, result, and mode of the plugin config. "+
			"Only the busiest tenants have an org_id of their own, all others share other; (none) has no tenant.",
		[]string{orgLabel, endpointLabel, "tier", "result", "mode"}, nil)
	shadowDenied = prometheus.NewDesc(prefix+"tenant_shadow_denials_total",
		"Requests that limits in shadow or log mode would have denied, by tenant; each request once.",
		[]string{orgLabel}, nil)
	bucketTokens = prometheus.NewDesc(prefix+"bucket_tokens",
		"Tokens left in a busy tenant's own bucket at its last request; the fewest, if there are several of one scope.",
		[]string{"scope", orgLabel, endpointLabel}, nil)
	usageRatio = prometheus.NewDesc(prefix+"tenant_usage_ratio",
		"Share of the limit that a busy tenant has used, by policy per tenant, at its last request: 1 is all of it.",
		[]string{orgLabel, "policy"}, nil)
)

func (t *tenants) Describe(to chan<- *prometheus.Desc) {
	to <- requests
	to <- shadowDenied
	to <- bucketTokens
	to <- usageRatio
}

// Collect implements prometheus.Collector. A scrape also updates which tenants have a label, since only scrapes show
// it.
func (t *tenants) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(to)
	now := time.Now()
	t.mu.Lock()
	t.rotate(now)
	all := []*tenant{t.anonymous, t.other}
	all = slices.AppendSeq(all, maps.Values(*t.labelled.Load()))
	all = slices.AppendSeq(all, maps.Values(t.leaving))
	t.mu.Unlock()
	for _, who := range all {
		for _, l := range who.lanes.Load().all {
			l.collectResults(who.name, to)
		}
		if n := who.shadowDenied.Load(); n > 0 {
			to <- prometheus.MustNewConstMetric(shadowDenied, prometheus.CounterValue, float64(n), who.name)
		}
		collectBuckets(who.name, who.bucketsAt(limit.Micros(now.UnixMicro())), to)
	}
}

func (l *lane) collectResults(org string, to chan<- prometheus.Metric) {
	for i := range l.results {
		if n := l.results[i].Load(); n > 0 {
			to <- prometheus.MustNewConstMetric(requests, prometheus.CounterValue, float64(n),
				org, l.endpoint, l.tier, decision.Result(i).String(), l.mode.String())
		}
	}
}

// collectBuckets sends the tokens left in the emptiest bucket of each scope and endpoint, and the largest used share of
// each policy per tenant. Several configs may have limits of one name.
func collectBuckets(org string, all []bucket, to chan<- prometheus.Metric) {
	type bucketGroup struct {
		scope    policy.Scope
		endpoint string
	}
	left, used := map[bucketGroup]int64{}, map[string]float64{}
	for i := range all {
		b := &all[i]
		at := bucketGroup{b.scope, labelValue(cmp.Or(b.endpoint, none))}
		if least, ok := left[at]; !ok || b.left < least {
			left[at] = b.left
		}
		if b.scope == policy.Tenant {
			name := labelValue(b.policy)
			used[name] = max(used[name], float64(b.used)/float64(b.size))
		}
	}
	for at, tokens := range left {
		to <- prometheus.MustNewConstMetric(bucketTokens, prometheus.GaugeValue, float64(tokens),
			at.scope.String(), org, at.endpoint)
	}
	for name, share := range used {
		to <- prometheus.MustNewConstMetric(usageRatio, prometheus.GaugeValue, share, org, name)
	}
}
