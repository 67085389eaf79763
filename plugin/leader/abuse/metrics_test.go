package abuse

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
)

func TestFlagsAreCountedByTenantAndSignal(t *testing.T) {
	w := newWorld(t)
	w.past("acme", repeat(8, scraped)...)
	values := promtest.CheckPublished(t, "testdata/metrics.golden", metrics.Read(w.detect(Shadow).Stats))
	promtest.WantValues(t, values, "", map[string]float64{
		"rate_limiter_abuse_detection_flags_total acme denied_share": 6, // of 8 minutes, all but the first two
		"rate_limiter_abuse_detection_flags_total acme spike":        0,
		"rate_limiter_abuse_orgs shadow half":                        1,
		"rate_limiter_abuse_orgs shadow ban_1h":                      0,
	})
}

func TestTheSeriesOfTenantsAreBounded(t *testing.T) {
	d := New(Options{Mode: Shadow, DeniedShare: DefaultDeniedShare})
	for i := range maxOrgs + 50 {
		d.countFlag(fmt.Sprint("tenant-", i), Spike)
	}
	d.countFlag("\xff", Spike)
	series, others := 0, 0.0
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics.Read(d.Stats))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series++
			if labels := m.GetLabel(); labels[0].GetValue() == otherOrg && labels[1].GetValue() == string(Spike) {
				others = m.GetCounter().GetValue()
			}
		}
	}
	if want := (maxOrgs + 1) * 3; series > want+len(StepNames()) || others != 51 {
		t.Errorf("%d series, and other has %v", series, others)
	}
}
