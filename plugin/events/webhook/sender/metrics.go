package sender

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Stats counts what a process has done as the sender.
type Stats struct {
	Leading   bool
	Delivered int64
	Failed    int64 // tries after which the delivery is tried again
	GivenUp   int64 // deliveries
	Dropped   int64 // events that did not fit a queue, or were given up
	hookCounts
}

// hookCounts counts webhooks by state, and the deliveries that wait.
type hookCounts struct{ Healthy, Failing, Disabled, Waiting int64 }

// Stats returns what this process has done.
func (s *Sender) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// count changes the counters.
func (s *Sender) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

const metricPrefix = "rate_limiter_webhook_"

var (
	leaderDesc = prometheus.NewDesc(metricPrefix+"leader",
		"1 while this process sends events to webhooks; else 0.", nil, nil)
	triesDesc = prometheus.NewDesc(metricPrefix+"tries_total",
		"Requests to webhooks, by result; failed: it is tried again, given_up: it was the last try.", []string{"result"}, nil)
	droppedDesc = prometheus.NewDesc(metricPrefix+"events_dropped_total",
		"Events that a webhook does not get, because its queue was full or the delivery was given up.", nil, nil)
	hooksDesc = prometheus.NewDesc(metricPrefix+"subscriptions",
		"Webhooks, by state; failing: the last try failed, disabled: by the sender, because all tries of a day failed or "+
			"the receiver is gone. 0 unless this process sends.", []string{"state"}, nil)
	waitingDesc = prometheus.NewDesc(metricPrefix+"deliveries_waiting",
		"Deliveries that wait for their first or next try. 0 unless this process sends.", nil, nil)
)

// Describe implements prometheus.Collector.
func (*Sender) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leaderDesc, triesDesc, droppedDesc, hooksDesc, waitingDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Sender) Collect(to chan<- prometheus.Metric) {
	now := s.Stats()
	leads := 0.0
	if now.Leading {
		leads = 1
	} else {
		now.hookCounts = hookCounts{}
	}
	to <- prometheus.MustNewConstMetric(leaderDesc, prometheus.GaugeValue, leads)
	to <- prometheus.MustNewConstMetric(droppedDesc, prometheus.CounterValue, float64(now.Dropped))
	to <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(now.Waiting))
	for result, n := range map[string]int64{"delivered": now.Delivered, "failed": now.Failed, "given_up": now.GivenUp} {
		to <- prometheus.MustNewConstMetric(triesDesc, prometheus.CounterValue, float64(n), result)
	}
	for state, n := range map[string]int64{"healthy": now.Healthy, "failing": now.Failing, "disabled": now.Disabled} {
		to <- prometheus.MustNewConstMetric(hooksDesc, prometheus.GaugeValue, float64(n), state)
	}
}
