//go:build !race

// The race detector makes pools forget, so allocations are counted without it.

package limiter_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limiter"
)

// A decision belongs to its caller, so what it holds is made for it: the statuses, the headers, and their values.
func TestADecisionAllocatesOnlyWhatItHolds(t *testing.T) {
	r := limiter.Request{Org: "acme", User: "u_42", Endpoint: "POST /records/7", IP: "192.0.2.1"}
	for name, test := range map[string]struct {
		config string
		most   float64
	}{
		"with headers":    {roomy, 3},
		"without headers": {roomy + "hide_client_headers: true\n", 1},
		"without limits":  {"tiers: [{name: a, limits: []}]", 0},
	} {
		l := limiting(t, parse(t, test.config))
		acquire(t, l, r)
		if n := testing.AllocsPerRun(1000, func() { acquire(t, l, r) }); n > test.most {
			t.Errorf("%s: %.1f allocations, want at most %.0f", name, n, test.most)
		}
	}
}
