package compare

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkLatency measures the duration of decisions of four bounds while all callers decide as fast as they can. The
// machine is saturated: callers wait for each other and for a processor, not only for the store. Each number includes
// reading the clock.
func BenchmarkLatency(b *testing.B) {
	const bounds = 4
	redis := openRedis(b)
	for _, e := range entrants {
		if e.name != "lease" && e.name != "memory" && e.name != "redis" {
			continue
		}
		b.Run("limiter="+e.name, func(b *testing.B) {
			r := run{limiter: e.open(b, newJob(b, bounds, 1, plenty, redis)), draws: []int32{0}}
			r.warm(b)
			for _, callers := range []int{1, 16, 64} {
				b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { r.latency(b, callers) })
			}
		})
	}
}

// latency decides about b.N requests and reports quantiles of their durations.
func (r *run) latency(b *testing.B, callers int) {
	var mu sync.Mutex
	var took []time.Duration
	b.ResetTimer()
	r.each(b, callers, func(i int, decide func() error) error {
		own := make([]time.Duration, (b.N+i)/callers) // b.N together
		for n := range own {
			start := time.Now()
			if err := decide(); err != nil {
				return err
			}
			own[n] = time.Since(start)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, own...)
		return nil
	})
	b.StopTimer()
	b.ReportMetric(0, "ns/op") // the quantiles replace it
	slices.Sort(took)
	for _, q := range []struct {
		name  string
		share float64
	}{{"p50-µs", 0.5}, {"p99-µs", 0.99}, {"p99.9-µs", 0.999}} {
		b.ReportMetric(float64(took[int(q.share*float64(len(took)-1))])/float64(time.Microsecond), q.name)
	}
}
