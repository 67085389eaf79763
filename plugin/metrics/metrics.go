// Package metrics tells operators what the process decides and how it fares, in Prometheus's words.
//
// [Metrics] is an observer of decisions, and reads what other packages count when it is asked ([Sources]). [Server] is
// the listener: /metrics, and beside it /healthz and /readyz. It has a registry of its own, so that no library adds
// to it.
//
// Who sends requests cannot make series without end. Tiers, policies, namespaces and endpoints (canonical patterns and
// names of routes) come from configurations, stores from settings, and nearly all else is a word of ours; but
// configurations change, and a series stays, so each family has a ceiling, beyond which a new name is "other". The one
// label from requests is the tenant: the busiest have their own ([TenantLabels]), the rest are "other".
//
// Users, credentials, addresses and raw paths are never labels. There are as many as clients care to send, each would
// be a series that Prometheus keeps for weeks; and they are personal data, in a place that many read and nobody deletes
// from. One user or address is looked for in the records of denials, which expire.
//
// A word in parentheses stands where there is no name: no policy can be called so, and a tenant of such a name, or one
// whose id is no text, is among the "other".
//
// Counting is not logging, and not deciding: both are others'.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
)

// prefix is what all our own metrics' names begin with.
const prefix = "rate_limiter_"

// Metrics counts decisions and gathers all numbers of the process. It is an admit.Observer and a prometheus.Gatherer,
// safe for concurrent use. Make it with New.
type Metrics struct {
	prometheus.Gatherer // of all numbers; with an error come those that could be had

	// Routes tells whether a name is that of a route, and so may be a label: set it before the first decision where requests
	// name their routes themselves, and not a gateway. nil: all are.
	Routes func(name string) bool

	registry *prometheus.Registry
	sources  Sources
	version  string

	tenants       *tenants
	durations     durations
	fullness      fullness
	denials       counters[policyKey]
	shadowDenials counters[policyKey]
	fallbacks     counters[failureKey]
	unverified    counters[unverifiedKey]
	unavailable   counters[unavailableKey]
	overrides     counters[overrideKey]

	missingTenants, missingUsers, unknownTiers prometheus.Counter
}

// New makes metrics of the program of this version, with a registry of their own, and with the default labels for
// tenants.
func New(version string, sources Sources) *Metrics {
	return NewWithTenants(version, sources, TenantLabels{})
}

// NewWithTenants is New with other labels for tenants.
func NewWithTenants(version string, sources Sources, labels TenantLabels) *Metrics {
	registry := prometheus.NewRegistry()
	m := &Metrics{Gatherer: registry, registry: registry, sources: sources, version: version, tenants: newTenants(labels)}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        prefix + "build_info",
			Help:        "Always 1; its labels tell the version of the program and of the Go it was built with.",
			ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	m.registry.MustRegister(sources.collectors()...)

	m.registry.MustRegister(m.tenants, &m.fullness)
	m.durations.init(m.registry)
	m.countDecisions()
	m.countMissing()
	return m
}

func (m *Metrics) countDecisions() {
	m.denials.init(m.registry, "denials_total",
		"Requests denied, once for each policy that had no room, by the request's tier. A denial for another reason than a policy has that reason, in parentheses, as its policy.",
		"policy", "scope", "tier")
	m.shadowDenials.init(m.registry, "shadow_denials_total",
		"Requests that would have been denied, once for each policy in shadow or log mode that had no room. Another reason than a policy stands in parentheses.",
		"policy", "scope", "tier")
	m.fallbacks.init(m.registry, "fallback_activations_total",
		"Bounds for which the shared store did not answer, so that their fail modes decided, by what was wrong.",
		"reason")
	m.unverified.init(m.registry, "unverified_total",
		"Bounds of admitted requests that only this node's share (local) or nothing (open) could vouch for, because the shared store did not answer.",
		"policy", "fail_mode")
	m.unavailable.init(m.registry, "unavailable_total",
		"Requests refused only because the shared store did not answer, once for each policy that fails closed.",
		"policy")
	m.overrides.init(m.registry, "override_applied_total",
		"Overrides that held for a request: ban and exempt once, limit (a commercial override) and penalty (a detector's) once for each limit that they changed.",
		"override_type", "scope")
	// Reasons are few and an alert compares them with what they were: they count from 0.
	for f := decision.Unavailable; f <= decision.WrongType; f++ {
		m.fallbacks.of(failureKey(f))
	}
}

func (m *Metrics) countMissing() {
	missing := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "missing_identities_total",
		Help: "Requests whose tenant could not be told, whose user could not be told although a limit wants one, or whose tenant claims a tier that does not exist.",
	}, []string{"kind"})
	m.registry.MustRegister(missing)
	m.missingTenants = missing.WithLabelValues("tenant")
	m.missingUsers = missing.WithLabelValues("user")
	m.unknownTiers = missing.WithLabelValues("tier")
}
