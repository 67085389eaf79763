package portal

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of a portal. Pages are the paths of its table, so their labels are bounded.
type metrics struct {
	sessions *prometheus.CounterVec
	denied   *prometheus.CounterVec
	pages    *prometheus.HistogramVec
}

// Values of labels.
const (
	byToken    = "token"
	byProvider = "provider"

	deniedUnknown   = "unknown"   // the token is unknown, expired or revoked
	deniedUnchecked = "unchecked" // tokens could not be checked, or too many unknown ones came from the address
	deniedOften     = "often"     // too many sign-ins with the token
	deniedPlain     = "plain"     // the connection is not encrypted
	deniedOrigin    = "origin"    // a write from another site, also of somebody signed in
	deniedProvider  = "provider"  // by the other system
)

// newMetrics returns the metrics, registered unless the registerer is nil. Names that are taken are a panic.
func newMetrics(registerer prometheus.Registerer) *metrics {
	const prefix = "rate_limiter_portal_"
	made := promauto.With(registerer)
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := made.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value)
		}
		return c
	}
	m := &metrics{
		sessions: counter("sessions_total", "Sessions started in the portal, by how people signed in.",
			"by", byToken, byProvider),
		denied: counter("denied_total", "Sign-ins and writes denied by the portal, by reason.",
			"reason", deniedUnknown, deniedUnchecked, deniedOften, deniedPlain, deniedOrigin, deniedProvider),
		pages: made.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "page_duration_seconds", Help: "How long pages of the portal took, in seconds.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"page"}),
	}
	for _, to := range pages() {
		m.pages.WithLabelValues(to.Path())
	}
	return m
}
