package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
)

const (
	// maxSeries is the ceiling of one family: enough for 20 policies in each of 100 tiers. Beyond it come only the series
	// that are called other, whose number is that of our own words.
	maxSeries = 2000
	// other is the name of all names beyond the ceiling.
	other = "other"
	// none stands where a request has no tier, or a reason no scope.
	none = "(none)"
)

// key is what the counters of one family are told apart by: names from configurations, and words of ours.
type key[K any] interface {
	comparable
	values() []string // one for each label of the family, in its order
	folded() K        // this key with other in place of every name from a configuration
}

// counters is a family of counters. Finding one that exists takes one look into a map that never changes: a new one
// copies it, which happens only as often as configurations bring names.
type counters[K key[K]] struct {
	family *prometheus.CounterVec
	known  atomic.Pointer[map[K]prometheus.Counter]
	adding sync.Mutex
}

func (c *counters[K]) init(to prometheus.Registerer, name, help string, labels ...string) {
	c.family = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	c.known.Store(&map[K]prometheus.Counter{})
	to.MustRegister(c.family)
}

// of is the counter of k.
func (c *counters[K]) of(k K) prometheus.Counter {
	known := *c.known.Load()
	counter, ok := known[k]
	if !ok && len(known) >= maxSeries {
		counter, ok = known[k.folded()]
	}
	if !ok {
		counter = c.add(k)
	}
	return counter
}

func (c *counters[K]) add(k K) prometheus.Counter {
	c.adding.Lock()
	defer c.adding.Unlock()
	known := *c.known.Load()
	if len(known) >= maxSeries {
		k = k.folded()
	}
	if counter, ok := known[k]; ok {
		return counter // added in the meantime
	}
	values := k.values()
	for i := range values {
		values[i] = labelValue(values[i])
	}
	counter := c.family.WithLabelValues(values...)
	more := make(map[K]prometheus.Counter, len(known)+1)
	maps.Copy(more, known)
	more[k] = counter
	c.known.Store(&more)
	return counter
}

// labelValue is text as a label's value, which must be UTF-8.
func labelValue(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// policyKey is a policy that denies, or another reason to.
type policyKey struct {
	policy string          // "" where reason is not Counted
	reason decision.Reason // Counted: the policy
	scope  policy.Scope    // 0 where reason is not Counted
	tier   string          // the request's
}

func (k policyKey) values() []string {
	if k.reason != decision.Counted {
		return []string{"(" + k.reason.String() + ")", none, orNone(k.tier)}
	}
	return []string{k.policy, k.scope.String(), orNone(k.tier)}
}

func (k policyKey) folded() policyKey {
	k.tier = other
	if k.reason == decision.Counted {
		k.policy = other
	}
	return k
}

type failureKey decision.Failure

func (k failureKey) values() []string   { return []string{decision.Failure(k).String()} }
func (k failureKey) folded() failureKey { return k }

// unverifiedKey is a policy, and what admitted in the shared store's stead: this node's share, or nothing (FailOpen).
type unverifiedKey struct {
	policy string
	by     policy.FailMode
}

func (k unverifiedKey) values() []string { return []string{k.policy, k.by.String()} }

func (k unverifiedKey) folded() unverifiedKey {
	k.policy = other
	return k
}

// unavailableKey is a policy's name.
type unavailableKey string

func (k unavailableKey) values() []string     { return []string{string(k)} }
func (unavailableKey) folded() unavailableKey { return other }

// overrideKey is what an override did, and to limits of which scope.
type overrideKey struct {
	effect effect
	scope  policy.Scope // 0: of all
}

func (k overrideKey) values() []string {
	return []string{k.effect.String(), orNone(k.scope.String())}
}

func (k overrideKey) folded() overrideKey { return k }

func orNone(name string) string {
	if name == "" {
		return none
	}
	return name
}
