package usage

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

func TestTheMetricsOfALeaderCountItsBatchesByResult(t *testing.T) {
	w := newWorld(t)
	l := w.run()
	p := newProcess(1)
	w.report(p.node, p.next(count("acme", 1)), 0)
	w.reportBytes(p.node, p.epoch, 2, 0, []byte("damaged"))
	await.That(w, "unpacked", func() bool { return l.Stats().Batches+l.Stats().Faulty == 2 })
	await.That(w, "a round", func() bool { return !l.Stats().UnpackedAt.IsZero() })
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(l)
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
		"leader": 1, "unpacked_batches_total added": 1, "unpacked_batches_total faulty": 1,
		"unpacked_batches_total gap": 0,
	} {
		if got, ok := values[metricPrefix+name]; got != want || !ok {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
	golden.Check(t, "testdata/metrics.golden", text)
}
