package portal

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
)

func TestTheMetricsAreThoseOfTheDocs(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	newMetrics(registry)
	promtest.CheckGathered(t, "testdata/metrics.golden", registry)
}
