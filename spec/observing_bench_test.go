package spec

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// BenchmarkScrape compares the durations of decisions with and without reading the metrics of 500 tenants every second,
// in turns on one process. Compare within one run.
func BenchmarkScrape(b *testing.B) {
	const turn, tenants = 3 * time.Second, 500
	prefix := shortDir(b)
	metrics := freeport.Address(b)
	startPlugin(b, prefix, "-metrics-listen", metrics)
	socket := filepath.Join(prefix, "tenant-rate-limiting.socket")
	id := startInstance(b, socket,
		`{"__seq__":1,"__plugin_id":"p",
			"tiers":[{"name":"a","limits":[{"name":"day","scope":"tenant","limit":1000000000,"window_size":86400}]}]}`)
	c, err := gateway.Dial(socket)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	requests := make([]gateway.Request, tenants)
	for i := range requests {
		requests[i] = gateway.Request{Consumer: &gateway.Consumer{
			ID:       "c",
			CustomID: "tenant-" + string(rune('a'+i%26)) + string(rune('a'+i/26)),
		}, RemoteAddr: "127.0.0.1:1"}
	}
	decide := func() (took []time.Duration) {
		for end := time.Now().Add(turn); time.Now().Before(end); {
			start := time.Now()
			if _, err := c.HandleEvent(id, "access", requests[len(took)%tenants]); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		return took
	}
	var quiet, scraped []time.Duration
	for b.Loop() {
		quiet = append(quiet, decide()...)
		stop := make(chan struct{})
		var scraping sync.WaitGroup
		scraping.Go(func() { scrapeUntil(b, metrics, stop) })
		scraped = append(scraped, decide()...)
		close(stop)
		scraping.Wait()
	}
	for name, took := range map[string][]time.Duration{"quiet": quiet, "scraped": scraped} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, name+"-p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, name+"-p99-µs")
	}
	b.ReportMetric(0, "ns/op")
}

// scrapeUntil reads the metrics every second until stop.
func scrapeUntil(b *testing.B, metrics string, stop <-chan struct{}) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			if status, _ := read(metrics, "/metrics"); status != 200 {
				b.Errorf("metrics: %d", status)
				return
			}
		}
	}
}
