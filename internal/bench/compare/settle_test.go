package compare

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	reserved = 10              // tokens, by the first limit of a request
	yearly   = 365 * 24 * 3600 // seconds: no bucket is full again before its request is settled
)

// BenchmarkSettle takes the bounds of requests, and settles the first bound of each afterwards, so a row has the costs
// of a take and of a settlement side by side. Each caller has a tenant of its own.
func BenchmarkSettle(b *testing.B) {
	redis := openRedis(b)
	for _, s := range []struct {
		name   string
		redis  *server
		opened store.Store
	}{{"memory", nil, inMemory()}, {"redis", redis, redis.store}} {
		for _, bounds := range []int{1, 4} {
			for _, kind := range []struct {
				name   string
				actual int64
			}{{"returns", reserved - 4}, {"charges", reserved + 4}} {
				for _, callers := range []int{1, 64} {
					name := fmt.Sprintf("store=%s/bounds=%d/settling=%s/goroutines=%d", s.name, bounds, kind.name, callers)
					b.Run(name, func(b *testing.B) {
						r := &reservations{
							store: s.opened, redis: s.redis, actual: kind.actual,
							job: newJob(b, bounds, callers, plenty, s.redis),
						}
						list := limits(bounds, plenty)
						list[0].Algorithm, list[0].WindowSize = schema.AlgorithmFixedWindow, yearly
						r.job.bounds = boundsOf(b, list, r.job.tenants[0], "u_42")
						r.measure(b)
					})
				}
			}
		}
	}
}

// reservations takes and settles by one caller for each tenant of its job.
type reservations struct {
	store  store.Store
	redis  *server // nil: the store is in memory
	job    *job
	actual int64
	take   phase
	settle phase
}

// phase is what all takes, or all settlements, have cost.
type phase struct {
	took, cpu time.Duration
	redis     float64 // seconds of its CPU
}

// measure takes and settles in batches, and reports the costs of one.
func (r *reservations) measure(b *testing.B) {
	b.Helper()
	const most = 6400
	callers := len(r.job.tenants)
	bounds := make([][]policy.Bound, callers)
	statuses := make([][]decision.Status, most)
	for i := range bounds {
		bounds[i] = append(bounds[i], r.job.bounds...)
		bounds[i][0].Cost = reserved
		for j := range bounds[i] {
			bounds[i][j].Key.GroupID = r.job.groupOf(j, i)
		}
	}
	for i := range statuses {
		statuses[i] = make([]decision.Status, len(r.job.bounds))
	}
	for left := b.N; left > 0; left -= most {
		batch := statuses[:min(left, most)]
		r.take.measure(b, r.redis, func() {
			each(b, callers, batch, func(caller int, s []decision.Status) error {
				admitted, err := take(r.store, bounds[caller], s)
				if err == nil && !admitted {
					err = errDenied
				}
				return err
			})
		})
		r.settle.measure(b, r.redis, func() {
			each(b, callers, batch, func(caller int, s []decision.Status) error {
				err := r.store.Settle(context.Background(), bounds[caller][:1], s[:1], []int64{r.actual})
				if err == nil && s[0].Settled != r.actual-reserved {
					err = fmt.Errorf("settled %d tokens, want %d", s[0].Settled, r.actual-reserved)
				}
				return err
			})
		})
	}
	b.ReportMetric(0, "ns/op") // of both
	r.take.report(b, "take")
	r.settle.report(b, "settle")
	if r.redis != nil {
		b.ReportMetric(r.settle.redis/r.take.redis, "redis-settle-vs-take")
	}
}

// each does the work of a batch, which the callers divide among them.
func each(
	b *testing.B, callers int, batch [][]decision.Status, work func(caller int, s []decision.Status) error,
) {
	b.Helper()
	var working sync.WaitGroup
	for caller := range callers {
		working.Go(func() {
			for i := caller; i < len(batch); i += callers {
				if err := work(caller, batch[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
}

// measure adds what do costs.
func (p *phase) measure(b *testing.B, redis *server, do func()) {
	b.Helper()
	inRedis, used, began := redis.cpu(b), usedCPU(b), time.Now()
	do()
	p.took += time.Since(began)
	p.cpu += usedCPU(b) - used
	p.redis += redis.cpu(b) - inRedis
}

func (p *phase) report(b *testing.B, verb string) {
	b.ReportMetric(float64(p.took.Nanoseconds())/float64(b.N), verb+"-ns")
	b.ReportMetric(float64(p.cpu.Nanoseconds())/float64(b.N), verb+"-cpu-ns")
	if p.redis > 0 {
		b.ReportMetric(p.redis*1e6/float64(b.N), "redis-µs/"+verb)
	}
}

// cpu returns the seconds of CPU time that Redis has used; without Redis 0.
func (s *server) cpu(tb testing.TB) float64 {
	tb.Helper()
	if s == nil {
		return 0
	}
	text, err := s.admin.Info(context.Background(), "cpu").Result()
	if err != nil {
		tb.Fatalf("read the CPU time of Redis: %v", err)
	}
	var sum float64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		var seconds float64
		if _, err := fmt.Sscan(value, &seconds); err != nil {
			tb.Fatalf("read the CPU time of Redis: %v", err)
		}
		sum += seconds
	}
	return sum
}
