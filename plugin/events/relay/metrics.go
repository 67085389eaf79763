package relay

import "github.com/prometheus/client_golang/prometheus"

const metricPrefix = "rate_limiter_topic_"

var (
	leaderDesc = prometheus.NewDesc(metricPrefix+"leader",
		"1 while this process sends the events of a topic; else 0.", []string{"topic"}, nil)
	failingDesc = prometheus.NewDesc(metricPrefix+"failing",
		"1 if the last try to send events to a topic failed; else 0.", []string{"topic"}, nil)
	eventsDesc = prometheus.NewDesc(metricPrefix+"events_total",
		"Events that this process handled for a topic, by result; rejected: Kafka will never take them.",
		[]string{"topic", "result"}, nil)
	waitingDesc = prometheus.NewDesc(metricPrefix+"oldest_event_seconds",
		"Seconds since the oldest event that a topic has not got was added to the outbox; only of its leader.",
		[]string{"topic"}, nil)
	droppedDesc = prometheus.NewDesc(metricPrefix+"dropped_events",
		"Events that left the outbox before a topic had them; only of its leader.",
		[]string{"topic"}, nil)
)

// Collector is a prometheus.Collector of relays.
type Collector []*Relay

// Describe implements prometheus.Collector.
func (c Collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{leaderDesc, failingDesc, eventsDesc, waitingDesc, droppedDesc} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(to chan<- prometheus.Metric) {
	for _, r := range c {
		now, topic := r.Stats(), r.options.Topic
		gauge := func(desc *prometheus.Desc, value float64) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, topic)
		}
		gauge(leaderDesc, indicator(now.Leading))
		gauge(failingDesc, indicator(now.Failing))
		if now.Leading { // another process reads the cursor otherwise
			gauge(waitingDesc, now.Lag.Oldest.Seconds())
			gauge(droppedDesc, float64(now.Lag.Dropped))
		}
		to <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(now.Sent), topic, "sent")
		to <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(now.Rejected), topic, "rejected")
	}
}

func indicator(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
