package spec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// BenchmarkThreads compares numbers of threads of the plugin server, which shares the machine with the gateway's
// workers. Both serve sixteen clients while every 250 ms a large config is started and the metrics are read. The
// settings take turns; compare within one run.
func BenchmarkThreads(b *testing.B) {
	const clients, turn = 16, 2 * time.Second
	for _, threads := range []int{1, 2, 1, 2, 1, 2}[:2*shortly(3)] {
		b.Run("max-procs="+strconv.Itoa(threads), func(b *testing.B) {
			metrics := freeport.Address(b)
			prefix := shortDir(b)
			n := start(b, deck(plentiful), func(o *gateway.Options) {
				o.Prefix = prefix
				o.Servers = []gateway.PluginServer{{
					Binary: plugin(),
					Args:   []string{"-metrics-listen", metrics, "-max-procs", strconv.Itoa(threads)},
				}}
			})
			for b.Loop() {
				var took []time.Duration
				var mu sync.Mutex
				var load sync.WaitGroup
				end := time.Now().Add(turn)
				for range clients {
					load.Go(func() {
						var own []time.Duration
						for time.Now().Before(end) {
							start := time.Now()
							if a, err := n.send("GET", "/records", "apikey", "alice"); err != nil || a.Status != 200 {
								b.Error(a.Status, err)
								return
							}
							own = append(own, time.Since(start))
						}
						mu.Lock()
						defer mu.Unlock()
						took = append(took, own...)
					})
				}
				load.Go(func() { disturb(b, filepath.Join(prefix, "tenant-rate-limiting.socket"), metrics, end) })
				load.Wait()
				if b.Failed() {
					return
				}
				slices.Sort(took)
				b.ReportMetric(float64(len(took))/turn.Seconds(), "requests/s")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// disturb starts a large config and reads the metrics repeatedly.
func disturb(b *testing.B, socket, metrics string, end time.Time) {
	c, err := gateway.Dial(socket)
	if err != nil {
		b.Error(err)
		return
	}
	defer c.Close()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; time.Now().Before(end); i++ {
		config := hundredTiers(fmt.Sprintf(`"error_message":"%d"`, i)) // a new config each time, so that it is compiled
		if _, err := c.StartInstance("tenant-rate-limiting", []byte(config)); err != nil {
			b.Error(err)
			return
		}
		if status, _ := read(metrics, "/metrics"); status != 200 {
			b.Errorf("metrics: %d", status)
			return
		}
		<-ticker.C
	}
}
