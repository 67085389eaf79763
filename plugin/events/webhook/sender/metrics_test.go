package sender

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

func TestTheMetricsCountTriesByResultAndWebhooksByState(t *testing.T) {
	w := newWorld(t)
	w.subscribe("fine", w.newReceiver(status(200)).URL)
	w.subscribe("down", w.newReceiver(status(500)).URL)
	w.subscribe("gone", w.newReceiver(status(410)).URL)
	for _, org := range []string{"fine", "down", "gone"} {
		w.happen(org, 1)
	}
	w.work()
	w.pass(choresEvery)
	w.work()
	w.sender.count(func(now *Stats) { now.Leading = true })
	values := promtest.CheckPublished(t, "testdata/metrics.golden", metrics.Read(w.sender.Stats))
	promtest.WantValues(t, values, "rate_limiter_webhook_", map[string]float64{
		"leader": 1, "tries_total delivered": 1, "tries_total failed": 3, "tries_total given_up": 0,
		"subscriptions healthy": 1, "subscriptions failing": 1, "subscriptions disabled": 1, "deliveries_waiting": 2,
		"events_dropped_total": 0,
	})
}
