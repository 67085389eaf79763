package promtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/golden"
)

// CheckPublished compares the metrics of collectors with a golden file, which ReadPublished reads: their names, types,
// labels and help. It returns the values of gauges and counters by name, and the values of labels after it.
func CheckPublished(t testing.TB, file string, collectors ...prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	return CheckGathered(t, file, registry)
}

// CheckGathered is CheckPublished for metrics that are registered.
func CheckGathered(t testing.TB, file string, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	text, values := "", map[string]float64{}
	for _, f := range families {
		var labels []string
		for _, m := range f.GetMetric() {
			labels = labels[:0]
			series := f.GetName()
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
				series += " " + l.GetValue()
			}
			values[series] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		text += fmt.Sprintf("%s %s {%s}\n    %s\n", f.GetName(), strings.ToLower(f.GetType().String()),
			strings.Join(labels, ","), f.GetHelp())
	}
	golden.Check(t, file, text)
	return values
}

// WantValues fails the test unless series have these values. prefix begins their names.
func WantValues(t testing.TB, got map[string]float64, prefix string, wanted map[string]float64) {
	t.Helper()
	for series, want := range wanted {
		if value, ok := got[prefix+series]; value != want || !ok {
			t.Errorf("%s is %v (%v), want %v", prefix+series, value, ok, want)
		}
	}
}
