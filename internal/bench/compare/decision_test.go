// Package compare measures the cost of a decision: from a lease, in memory and in Redis, and with other Go libraries,
// on one machine and in one run. It has benchmarks, and a test that every limiter in them limits.
//
//   - BenchmarkHotKey and BenchmarkZipf: time, CPU, allocations and store calls of a decision, for one tenant
//     and for 100,000 of very different popularity.
//   - BenchmarkAdmit: the whole path of a request, from facts to headers.
//   - BenchmarkUsage: the same without usage and with it.
//   - BenchmarkSettle: a take and a settlement in the store.
//
// Compare numbers of one run only. The comments of the entrants, and docs/benchmarks.md, describe what each of them
// does. Package spec measures decisions over the socket, package redis the cost for Redis itself.
package compare

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// warmUp is the time that a limiter runs before it is measured: it creates its buckets, and leases grow.
const warmUp = 300 * time.Millisecond

// shortened returns a time, or a tenth of it where -short only checks that a benchmark measures.
func shortened(d time.Duration) time.Duration {
	if testing.Short() {
		return d / 10
	}
	return d
}

var errDenied = errors.New("denied with tokens left")

// The test fails for an entrant that is fast because it does nothing.
func TestEveryEntrantAdmitsUpToTheLimitOfEachTenantAndNoMore(t *testing.T) {
	const allowed, tries = 5, 8
	redis := openRedis(t)
	for _, e := range entrants {
		t.Run(e.name, func(t *testing.T) {
			want, tenants := allowed, 2
			if e.even {
				want = 1
			}
			if e.single {
				tenants = 1
			}
			j := newJob(t, 3, tenants, quota{allowed, time.Hour}, redis)
			decide := e.open(t, j).caller()
			for tenant := range j.tenants {
				admitted := 0
				for range tries {
					ok, err := decide(tenant)
					require.NoError(t, err)
					if ok {
						admitted++
					}
				}
				if admitted != want {
					t.Errorf("tenant %d: admitted %d of %d, want %d", tenant, admitted, tries, want)
				}
			}
		})
	}
}

// BenchmarkHotKey decides requests of one tenant.
func BenchmarkHotKey(b *testing.B) { compare(b, []int{1, 4, 8}, 1, []int32{0}, 1, 8, 64) }

// BenchmarkZipf decides requests of 100,000 tenants of very different popularity.
func BenchmarkZipf(b *testing.B) { compare(b, []int{1, 4, 8}, manyTenants, popular(), 1, 64) }

// compare gives every entrant the same jobs.
func compare(b *testing.B, counts []int, tenants int, draws []int32, parallel ...int) {
	redis := openRedis(b)
	for _, bounds := range counts {
		for _, e := range entrants {
			if e.single && tenants > 1 {
				continue
			}
			b.Run(fmt.Sprintf("bounds=%d/limiter=%s", bounds, e.name), func(b *testing.B) {
				r := run{limiter: e.open(b, newJob(b, bounds, tenants, plenty, redis)), draws: draws}
				r.warm(b)
				for _, goroutines := range parallel {
					b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) { r.measure(b, goroutines) })
				}
			})
		}
	}
}

// run is a limiter that is measured.
type run struct {
	limiter
	draws []int32 // the tenants of the requests, in order
}

// warm decides requests during warmUp.
func (r *run) warm(b *testing.B) {
	b.Helper()
	start := time.Now()
	r.each(b, 8, func(_ int, decide func() error) error {
		for time.Since(start) < shortened(warmUp) {
			for range 8 {
				if err := decide(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// measure decides b.N requests by parallel callers.
func (r *run) measure(b *testing.B, goroutines int) {
	var before uint64
	if r.calls != nil {
		before = r.calls(b)
	}
	b.ReportAllocs()
	used := usedCPU(b)
	b.ResetTimer()
	r.each(b, goroutines, func(i int, decide func() error) error {
		for range (b.N + i) / goroutines { // b.N together
			if err := decide(); err != nil {
				return err
			}
		}
		return nil
	})
	b.StopTimer()
	b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
	if r.calls != nil {
		b.ReportMetric(1000*float64(r.calls(b)-before)/float64(b.N), "shared-calls/1000")
	}
}

// usedCPU returns the CPU time of this process, in user and kernel mode.
func usedCPU(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatalf("read the CPU time: %v", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// each runs work for all callers in parallel, and waits for them. Each caller starts at another draw.
func (r *run) each(b *testing.B, callers int, work func(i int, decide func() error) error) {
	b.Helper()
	var working sync.WaitGroup
	for i := range callers {
		at, decide := i*len(r.draws)/callers, r.caller()
		working.Go(func() {
			err := work(i, func() error {
				if at++; at >= len(r.draws) {
					at = 0
				}
				admitted, err := decide(int(r.draws[at]))
				if err == nil && !admitted {
					err = errDenied
				}
				return err
			})
			if err != nil {
				b.Error(err)
			}
		})
	}
	working.Wait()
}
