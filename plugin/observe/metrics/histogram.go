package metrics

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// durationBuckets are from 10 µs to 1 s, in seconds.
var durationBuckets = []float64{
	10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1,
}

// maxDuration is the longest duration that is distinguished. It bounds the native buckets, of which eight double.
const maxDuration = 60 * limit.Second

// sourceSet holds a set of sources that answered: bit s is source s.
type sourceSet uint8

// durationHistograms holds histograms of the time until the buckets of a request had answered.
type durationHistograms [1 << decision.Sources]prometheus.Observer

func (h *durationHistograms) init(to prometheus.Registerer) {
	family := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: prefix + "check_duration_seconds",
		Help: "Seconds until all buckets of a request had answered, by source: memory (of the process), redis, " +
			"lease (leased tokens, or a remembered denial), local (this node's share of a limit while Redis is away), " +
			"fair_share (a cap denied), mixed, or none.",
		Buckets:                     durationBuckets,
		NativeHistogramBucketFactor: 1.1,
	}, []string{"source"})
	to.MustRegister(family)
	for set := range h {
		h[set] = family.WithLabelValues(sourceSet(set).String())
	}
}

func (a sourceSet) String() string {
	switch a {
	case 0, 1 << decision.Unanswered:
		return "none"
	}
	for one := decision.Memory; one < decision.Sources; one++ {
		if a == 1<<one {
			return one.String()
		}
	}
	return "mixed"
}

func (h *durationHistograms) observe(sources sourceSet, took limit.Micros) {
	h[sources].Observe(float64(min(max(took, 0), maxDuration)) / float64(limit.Second))
}

// perLimit is how many parts of a limit fullness is counted in; a part that is begun counts.
const perLimit = 10_000

// fullnessEnds are the upper ends of the buckets of fullness, in those parts.
var fullnessEnds = [...]int64{1000, 2500, 5000, 7500, 8000, 9000, 9500, perLimit, 12_500, 20_000}

var bucketFullness = prometheus.NewDesc(prefix+"bucket_fullness",
	"Share of the limit that is used after a request, for each enforced limit if its store answered: 1 is all of it.",
	[]string{"scope"}, nil)

// fullnessHistograms collects histograms of used shares of limits. They are simpler than Prometheus's own and so
// cheaper: each request updates several.
type fullnessHistograms [policy.UserEndpoint + 1]shareHistogram

type shareHistogram struct {
	buckets [len(fullnessEnds) + 1]atomic.Uint64 // the last one has no upper end
	sum     atomic.Uint64                        // in parts of perLimit
}

func (f *fullnessHistograms) observe(scope policy.Scope, used, size int64) {
	if size == 0 { // a limit of nothing, which Envoy may state
		return
	}
	s, share := &f[scope], (used*perLimit+size-1)/size
	i, _ := slices.BinarySearch(fullnessEnds[:], share)
	s.buckets[i].Add(1)
	s.sum.Add(uint64(share))
}

func (f *fullnessHistograms) Describe(to chan<- *prometheus.Desc) { to <- bucketFullness }

func (f *fullnessHistograms) Collect(to chan<- prometheus.Metric) {
	for scope := range f {
		s := &f[scope]
		count, upTo := uint64(0), make(map[float64]uint64, len(fullnessEnds))
		for i := range s.buckets {
			count += s.buckets[i].Load()
			if i < len(fullnessEnds) {
				upTo[float64(fullnessEnds[i])/perLimit] = count
			}
		}
		if count > 0 {
			sum := float64(s.sum.Load()) / perLimit
			to <- prometheus.MustNewConstHistogram(bucketFullness, count, sum, upTo, policy.Scope(scope).String())
		}
	}
}
