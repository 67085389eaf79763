package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
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

// counters holds a family of counters. A lookup reads an immutable map without a lock. A new counter copies the map,
// which happens only for new names of configurations.
type counters struct {
	family   *prometheus.CounterVec
	labels   []string
	byValues atomic.Pointer[map[labelValues]prometheus.Counter]
	createMu sync.Mutex
}

// labelValues are the values of the labels of a family, in their order.
type labelValues [3]string

func (c *counters) init(to prometheus.Registerer, name, help string, labels ...string) {
	c.family = prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	c.labels = labels
	c.byValues.Store(&map[labelValues]prometheus.Counter{})
	to.MustRegister(c.family)
}

// with returns the counter of some values, one for each label, and creates it if needed.
func (c *counters) with(values ...string) prometheus.Counter {
	var k labelValues
	copy(k[:], values)
	current := *c.byValues.Load()
	counter, ok := current[k]
	if !ok && len(current) >= maxSeries {
		counter, ok = current[c.folded(k)]
	}
	if !ok {
		counter = c.create(k)
	}
	return counter
}

// folded returns values with other in place of each name from a configuration: those of policies and tiers. What is in
// parentheses is our own word.
func (c *counters) folded(k labelValues) labelValues {
	for i, label := range c.labels {
		if (label == "policy" || label == "tier") && !strings.HasPrefix(k[i], "(") {
			k[i] = other
		}
	}
	return k
}

func (c *counters) create(k labelValues) prometheus.Counter {
	c.createMu.Lock()
	defer c.createMu.Unlock()
	current := *c.byValues.Load()
	if len(current) >= maxSeries {
		k = c.folded(k)
	}
	if counter, ok := current[k]; ok {
		return counter // another goroutine was faster
	}
	values := make([]string, len(c.labels))
	for i := range values {
		values[i] = labelValue(k[i])
	}
	counter := c.family.WithLabelValues(values...)
	more := maps.Clone(current)
	more[k] = counter
	c.byValues.Store(&more)
	return counter
}

// labelValue returns text as the value of a label, which must be UTF-8.
func labelValue(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// reasonLabels are the reasons to deny that are no policies, as values of the label policy.
var reasonLabels = func() (all [decision.ShareExceeded + 1]string) {
	for r := range all {
		all[r] = "(" + decision.Reason(r).String() + ")"
	}
	return all
}()

func orNone(name string) string {
	if name == "" {
		return none
	}
	return name
}
