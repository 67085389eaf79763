package portal

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

func TestTheMetricsAreThoseOfTheDocs(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	if _, err := newMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(registry); err == nil {
		t.Error("metrics that are registered already are no error")
	}
	promtest.CheckGathered(t, "testdata/metrics.golden", registry)
}
