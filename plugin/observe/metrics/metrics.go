// Package metrics exports what the process decides, and its health, to Prometheus.
//
// [Metrics] observes decisions, and reads the numbers of other packages at every scrape ([Sources]). [Server] serves
// /metrics, /healthz and /readyz. It has a registry of its own, to which no library adds metrics.
//
// Clients cannot create series without bound. Tiers, policies, namespaces and endpoints (canonical patterns and names
// of routes) come from configurations, stores from settings, and other values are constants. Configurations change and
// series stay, so each family has a bound, beyond which a new name becomes "other". The one label from requests is the
// tenant: the busiest have their own ([TenantLabels]), all others share "other".
//
// Users, credentials, addresses and raw paths are never labels. Clients can send any number of them, and each would be
// a series that Prometheus keeps for weeks. They are personal data too, which Prometheus does not delete. The records
// of denials have them, and expire.
//
// A word in parentheses marks the absence of a name: no policy can have such a name. A tenant with such a name, or with
// an id that is not UTF-8, is counted as "other".
//
// The package neither logs decisions nor makes them.
package metrics

import (
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// prefix begins the names of all metrics of the plugin.
const prefix = "rate_limiter_"

// Metrics counts decisions and gathers all numbers of the process. It is an admit.Observer and a prometheus.Gatherer,
// safe for concurrent use. Make it with New.
type Metrics struct {
	prometheus.Gatherer // of all numbers; with an error it returns those that could be read

	// Routes reports whether a name is that of a route, and so may be a label. Set it before the first decision if
	// requests name their routes themselves. nil: every name is a route.
	Routes func(name string) bool

	registry *prometheus.Registry
	sources  Sources
	version  string

	tenants       *tenants
	durations     durationHistograms
	fullness      fullnessHistograms
	denials       counters
	shadowDenials counters
	fallbacks     counters
	unverified    counters
	unavailable   counters
	capped        counters
	overrides     counters
	exempt        counters
	usageAnswers  counters
	missing       counters
	settlements   settlements
}

// New returns metrics for this version of the program, with a registry of their own and the default labels for tenants.
func New(version string, sources Sources) *Metrics {
	return NewWithTenants(version, sources, TenantLabels{})
}

// NewWithTenants returns metrics as New does, with other labels for tenants.
func NewWithTenants(version string, sources Sources, labels TenantLabels) *Metrics {
	registry := prometheus.NewRegistry()
	m := &Metrics{
		Gatherer: registry,
		registry: registry,
		sources:  sources,
		version:  version,
		tenants:  newTenants(labels),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        prefix + "build_info",
			Help:        "Always 1; its labels are the version of the program and of the Go it was built with.",
			ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	m.registry.MustRegister(sources.Numbers...)
	if sources.Limits != nil {
		m.registry.MustRegister(limitCollector{sources.Limits})
	}
	m.registry.MustRegister(m.tenants, &m.fullness)
	m.durations.init(m.registry)
	if sources.Settles {
		m.settlements.init(m.registry)
	}
	m.countDecisions()
	return m
}

func (m *Metrics) countDecisions() {
	m.denials.init(m.registry, "denials_total",
		"Requests denied, once for each policy that had no room, by the request's tier. "+
			"A denial for another reason than a policy has that reason, in parentheses, as its policy.",
		"policy", "scope", "tier")
	m.shadowDenials.init(m.registry, "shadow_denials_total",
		"Requests that would have been denied, once for each policy in shadow or log mode that had no room. "+
			"Another reason than a policy stands in parentheses.",
		"policy", "scope", "tier")
	m.fallbacks.init(m.registry, "fallback_activations_total",
		"Bounds that their fail modes decided because the shared store did not answer, by the cause.",
		"reason")
	m.unverified.init(m.registry, "unverified_total",
		"Bounds of admitted requests that were checked only against this node's share (local) or not at all (open), "+
			"because the shared store did not answer.",
		"policy", "fail_mode")
	m.capped.init(m.registry, "fair_share_denials_total",
		"Requests that a policy denied because their tenant had used its share, or would have in shadow or log mode.",
		"policy", "mode")
	m.unavailable.init(m.registry, "unavailable_total",
		"Requests denied only because the shared store did not answer, once for each policy that fails closed.",
		"policy")
	m.overrides.init(m.registry, "override_applied_total",
		"Overrides that applied to a request: ban and exempt once, limit (a commercial override) and penalty "+
			"(a detector's) once for each limit that they changed.",
		"override_type", "scope")
	m.exempt.init(m.registry, "exempt_total",
		"Requests admitted with the result exempt, by what the exemption names (such as tenant or user+endpoint; preflight "+
			"for CORS preflights), and by its source: config, or row for an override in Postgres.",
		"kind", "source")
	m.usageAnswers.init(m.registry, "usage_answers_total",
		"Answers of configs with usage_only, which read the limits of a tenant and spend nothing, by HTTP status.",
		"status")
	m.missing.init(m.registry, "missing_identities_total",
		"Requests without a tenant, without a user that a limit requires, or with a tier that does not exist.",
		"kind")
	// There are few reasons and kinds, and an alert compares them with their past: each counts from 0.
	for f := decision.Unavailable; f <= decision.WrongType; f++ {
		m.fallbacks.with(f.String())
	}
	for _, kind := range [...]string{"tenant", "user", "tier"} {
		m.missing.with(kind)
	}
}

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
	if counter, ok := (*c.byValues.Load())[k]; ok {
		return counter
	}
	return c.create(k)
}

// create returns a new counter. At the maximum other replaces each name from a configuration: those of policies and
// tiers, but for our own words, which are in parentheses.
func (c *counters) create(k labelValues) prometheus.Counter {
	c.createMu.Lock()
	defer c.createMu.Unlock()
	current := *c.byValues.Load()
	for i, label := range c.labels {
		if len(current) >= maxSeries && (label == "policy" || label == "tier") && !strings.HasPrefix(k[i], "(") {
			k[i] = other
		}
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
