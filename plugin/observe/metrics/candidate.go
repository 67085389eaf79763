package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Candidate holds the numbers of what the open candidate would change, all but Open, AgeSeconds and Waiting since
// the process started.
type Candidate struct {
	Open              bool    // a candidate is open at this node
	AgeSeconds        float64 // since it was created; 0: none is open, or the time is unknown
	Active, Candidate CandidateResults
	Enforced          CandidateResults  // requests that the candidate was enforced for
	Dropped           map[string]uint64 // requests by reason, and batches of counts: one of a fixed list
	Failed            uint64            // calls of Postgres
	Waiting           int               // requests
}

// CandidateResults counts requests by their outcome.
type CandidateResults struct{ Admitted, Denied uint64 }

var candidateNumbers = []number[Candidate]{
	gauge(
		"candidate_open",
		"1 while a candidate is open at this node, else 0.",
		func(c *Candidate) float64 { return indicator(c.Open) },
	),
	gauge(
		"candidate_age_seconds",
		"Age of the open candidate; 0: none is open, or it was read from a file.",
		func(c *Candidate) float64 { return c.AgeSeconds },
	),
	gauge(
		"candidate_waiting",
		"Requests that wait to be tried under the open candidate.",
		func(c *Candidate) float64 { return float64(c.Waiting) },
	),
	counter(
		"candidate_report_failures_total",
		"Calls of Postgres that did not store counts of a candidate: they wait and are sent again.",
		func(c *Candidate) float64 { return float64(c.Failed) },
	),
}

var (
	candidateRequests = prometheus.NewDesc(prefix+"candidate_requests_total",
		"Requests that were compared under the open candidate, once for each set of policies, by what that set decided; "+
			"denied also where the config only rehearses its limits.",
		[]string{"set", "result"}, nil)
	candidateEnforced = prometheus.NewDesc(prefix+"candidate_enforced_total",
		"Requests of tenants that the open candidate is enforced for, by result.",
		[]string{"result"}, nil)
	candidateDropped = prometheus.NewDesc(prefix+"candidate_dropped_total",
		"Requests that were not compared under the open candidate, by reason; queue: too many waited, facts: what only the "+
			"candidate needs could not be read, store: Redis did not answer, rows: counted in part, for lack of rows, "+
			"panic: a fault of the plugin. report: batches of counts that Postgres never stored.",
		[]string{"reason"}, nil)
)

// candidateCollector collects the numbers of the candidate.
type candidateCollector struct{ sourceCollector[Candidate] }

func (c candidateCollector) Describe(to chan<- *prometheus.Desc) {
	c.sourceCollector.Describe(to)
	to <- candidateRequests
	to <- candidateEnforced
	to <- candidateDropped
}

func (c candidateCollector) Collect(to chan<- prometheus.Metric) {
	defer recoverSource(candidateRequests, to)
	now := c.read()
	for _, n := range c.numbers {
		to <- prometheus.MustNewConstMetric(n.desc, n.kind, n.value(&now))
	}
	now.Active.collect(to, candidateRequests, "active")
	now.Candidate.collect(to, candidateRequests, "candidate")
	now.Enforced.collect(to, candidateEnforced)
	for reason, n := range now.Dropped {
		to <- prometheus.MustNewConstMetric(candidateDropped, prometheus.CounterValue, float64(n), reason)
	}
}

func (r CandidateResults) collect(to chan<- prometheus.Metric, desc *prometheus.Desc, labels ...string) {
	add := func(n uint64, result string) {
		all := append(slices.Clip(labels), result)
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), all...)
	}
	add(r.Admitted, "admitted")
	add(r.Denied, "denied")
}
