package sender

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
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
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.sender)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text, values := "", map[string]float64{}
	for _, f := range families {
		label := ""
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				label = l.GetName()
				name += " " + l.GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		text += fmt.Sprintf("%s %s {%s}\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()), label, f.GetHelp())
	}
	for name, want := range map[string]float64{
		"leader": 1, "tries_total delivered": 1, "tries_total failed": 3, "tries_total given_up": 0,
		"subscriptions healthy": 1, "subscriptions failing": 1, "subscriptions disabled": 1, "deliveries_waiting": 2,
		"events_dropped_total": 0,
	} {
		if got, ok := values[metricPrefix+name]; got != want || !ok {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	golden.Check(t, "testdata/metrics.golden", text)
}
