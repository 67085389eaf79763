package metrics

import (
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// maxSeries bounds the series of one family: enough for 20 policies in each of 100 tiers. Beyond it names from
	// configurations become other.
	maxSeries = 2000
	// other replaces all names beyond the bound.
	other = "other"
	// none marks a request without a tier, or a reason without a scope.
	none = "(none)"
)

// key identifies a counter within its family, by names from configurations and constants.
type key[K any] interface {
	comparable
	values() []string // one for each label of the family, in its order
	folded() K        // returns the key with other in place of every name from a configuration
}

// counters holds a family of counters. A lookup reads an immutable map without a lock. A new counter copies the map,
// which happens only for new names of configurations.
type counters[K key[K]] struct {
	family   *prometheus.CounterVec
	byKey    atomic.Pointer[map[K]prometheus.Counter]
	createMu sync.Mutex
}

func (c *counters[K]) init(to prometheus.Registerer, name, help string, labels ...string) {
	c.family = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	c.byKey.Store(&map[K]prometheus.Counter{})
	to.MustRegister(c.family)
}

// with returns the counter of k, and creates it if needed.
func (c *counters[K]) with(k K) prometheus.Counter {
	current := *c.byKey.Load()
	counter, ok := current[k]
	if !ok && len(current) >= maxSeries {
		counter, ok = current[k.folded()]
	}
	if !ok {
		counter = c.create(k)
	}
	return counter
}

func (c *counters[K]) create(k K) prometheus.Counter {
	c.createMu.Lock()
	defer c.createMu.Unlock()
	current := *c.byKey.Load()
	if len(current) >= maxSeries {
		k = k.folded()
	}
	if counter, ok := current[k]; ok {
		return counter // another goroutine was faster
	}
	values := k.values()
	for i := range values {
		values[i] = labelValue(values[i])
	}
	counter := c.family.WithLabelValues(values...)
	more := maps.Clone(current)
	more[k] = counter
	c.byKey.Store(&more)
	return counter
}

// labelValue returns text as the value of a label, which must be UTF-8.
func labelValue(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// policyKey identifies a policy that denies, or another reason to deny.
type policyKey struct {
	policy string          // "" if reason is not Counted
	reason decision.Reason // Counted for a policy
	scope  policy.Scope    // 0 if reason is not Counted
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

// unverifiedKey identifies a policy, and how it admitted without the central store: by this node's share, or unchecked
// (FailOpen).
type unverifiedKey struct {
	policy string
	by     policy.FailMode
}

func (k unverifiedKey) values() []string { return []string{k.policy, k.by.String()} }

func (k unverifiedKey) folded() unverifiedKey {
	k.policy = other
	return k
}

// cappedKey identifies a policy whose caps deny, or would in its mode.
type cappedKey struct {
	policy string
	mode   policy.Mode
}

func (k cappedKey) values() []string { return []string{k.policy, k.mode.String()} }

func (k cappedKey) folded() cappedKey {
	k.policy = other
	return k
}

// unavailableKey holds a policy's name.
type unavailableKey string

func (k unavailableKey) values() []string     { return []string{string(k)} }
func (unavailableKey) folded() unavailableKey { return other }

// exemptKey identifies what an exemption names, of which there are few kinds, and whether it is a row.
type exemptKey struct {
	kind  string
	isRow bool
}

func (k exemptKey) values() []string {
	if k.isRow {
		return []string{k.kind, "row"}
	}
	return []string{k.kind, "config"}
}

func (k exemptKey) folded() exemptKey { return k }

// overrideKey identifies what an override did, and the scope of the limits.
type overrideKey struct {
	effect effect
	scope  policy.Scope // 0 for all scopes
}

func (k overrideKey) values() []string {
	return []string{k.effect.String(), orNone(k.scope.String())}
}

func (k overrideKey) folded() overrideKey { return k }

// statusKey holds the status of an answer, which is a constant or of a config.
type statusKey int

func (k statusKey) values() []string  { return []string{strconv.Itoa(int(k))} }
func (k statusKey) folded() statusKey { return k }

func orNone(name string) string {
	if name == "" {
		return none
	}
	return name
}
