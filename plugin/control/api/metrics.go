package api

import (
	"cmp"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the metrics of one server. Routes are patterns of operations, so their labels are bounded.
type metrics struct {
	requests     *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	authFailures *prometheus.CounterVec
	limited      *prometheus.CounterVec
	busy         prometheus.Counter
	writes       *prometheus.CounterVec
}

// Values of labels.
const (
	noRoute     = "(none)"
	otherMethod = "(other)"

	reasonMissing = "missing" // no token was sent
	reasonUnknown = "unknown" // the token is unknown, expired or revoked
	reasonRole    = "role"    // the token's role does not allow it

	byToken   = "token"
	byAddress = "address"
)

// writeKinds are the kinds of writes in metrics, by the tag of their operations. A reset of buckets counts itself,
// since a preview is none.
var writeKinds = map[string]string{
	"policies": "policy", "candidates": "candidate", "overrides": "override", "abuse": "override", "orgs": "org",
	"costs": "cost", "record": "node", "webhooks": "webhook", "tokens": "token",
}

// countWrite counts a write that succeeded.
func (m *metrics) countWrite(tag string) {
	if kind, ok := writeKinds[tag]; ok {
		m.writes.WithLabelValues(kind).Inc()
	}
}

// newMetrics returns the metrics, registered unless the registerer is nil. Names that are taken are a panic.
func newMetrics(registerer prometheus.Registerer) *metrics {
	const prefix = "rate_limiter_control_"
	made := promauto.With(registerer)
	counter := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := made.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value)
		}
		return c
	}
	return &metrics{
		requests: made.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "requests_total", Help: "Requests answered, by route, method and status code.",
		}, []string{"route", "method", "code"}),
		duration: made.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "request_duration_seconds",
			Help:    "How long requests took, in seconds, including what a write waited for the nodes.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		authFailures: counter("auth_failures_total", "Requests denied because of their token: missing, unknown, or "+
			"without the required role.", "reason", reasonMissing, reasonUnknown, reasonRole),
		limited: counter("limited_total", "Requests denied by the API's own limits, by what the limit is counted per.",
			"by", byToken, byAddress, byNewSubjects),
		busy: made.NewCounter(prometheus.CounterOpts{
			Name: prefix + "busy_total", Help: "Requests denied because too many large bodies were in progress.",
		}),
		writes: counter("writes_total", "Writes that succeeded, by the kind of what was written.", "kind"),
	}
}

// observeRequest counts a request. The empty route stands for none. Clients choose methods freely, so only those that
// the API uses become labels.
func (m *metrics) observeRequest(route, method string, status int, took time.Duration) {
	route = cmp.Or(route, noRoute)
	switch method {
	case "GET", "HEAD", "POST", "PUT", "DELETE":
	default:
		method = otherMethod
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}
