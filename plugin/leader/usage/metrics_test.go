package usage

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

func TestTheMetricsOfALeaderCountItsBatchesByResult(t *testing.T) {
	w := newWorld(t)
	l := w.run()
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 0)
	w.reportBytes(p.node, p.epoch, 2, 0, []byte("damaged"))
	await.That(w, "unpacked", func() bool { return l.Stats().Batches+l.Stats().Faulty == 2 })
	await.That(w, "a round", func() bool { return !l.Stats().UnpackedAt.IsZero() })
	values := promtest.CheckPublished(t, "testdata/metrics.golden", metrics.Read(l.Stats))
	promtest.WantValues(t, values, "rate_limiter_usage_", map[string]float64{
		"leader": 1, "unpacked_batches_total added": 1, "unpacked_batches_total faulty": 1,
		"unpacked_batches_total gap": 0,
	})
}
