// Package metrics tells operators what the process decides and how it fares, in Prometheus's words.
//
// [Metrics] is an observer of decisions, and reads what other packages count when it is asked ([Sources]). [Server] is
// the listener: /metrics, and beside it /healthz and /readyz. It has a registry of its own, so that no library adds
// to it.
//
// No label is taken from a request: tiers, policies and namespaces come from configurations, stores from settings,
// and all else is a word of ours. So who sends requests cannot make series. Configurations change, though, and a
// series stays until the process ends; therefore each family has a ceiling, beyond which a new name is "other". Users,
// addresses and paths are never labels. A word in parentheses stands where there is no name: no policy can be called
// so.
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

	registry *prometheus.Registry
	sources  Sources
	version  string

	requests      counters[requestKey]
	denials       counters[policyKey]
	shadowDenials counters[policyKey]
	fallbacks     counters[failureKey]
	unverified    counters[unverifiedKey]
	unavailable   counters[unavailableKey]

	missingTenants, missingUsers, unknownTiers prometheus.Counter
}

// New makes metrics of the program of this version, with a registry of their own.
func New(version string, sources Sources) *Metrics {
	registry := prometheus.NewRegistry()
	m := &Metrics{Gatherer: registry, registry: registry, sources: sources, version: version}
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

	m.requests.init(m.registry, "requests_total",
		"Requests decided, by the tier whose limits applied, by result, and by the mode of the plugin config.",
		"tier", "result", "mode")
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
	// Reasons are few and an alert compares them with what they were: they count from 0.
	for f := decision.Unavailable; f <= decision.WrongType; f++ {
		m.fallbacks.of(failureKey(f))
	}
	m.countMissing()
	return m
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
