package compare

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// BenchmarkUsage measures the path of BenchmarkAdmit over memory without usage and with it, for requests of tenants in
// turn.
func BenchmarkUsage(b *testing.B) {
	settings := config(b, limits(4, plenty))
	plan, err := resolve.FromConfig(settings)
	require.NoError(b, err)
	for _, tenants := range []int{1, 1000, 10_000} {
		for _, counted := range []string{"off", "on"} {
			b.Run(fmt.Sprintf("tenants=%d/usage=%s", tenants, counted), func(b *testing.B) {
				decider := &admit.Decider{Buckets: inMemory(), Renderer: response.New(settings, nil)}
				decider.Policies.Store(plan)
				if counted == "on" {
					decider.Observers = []admit.Observer{usage.NewCounter(usage.CounterOptions{})}
				}
				all, x := make([]fixedFacts, tenants), new(admit.Exchange)
				decide := func(i int) {
					if err := decider.Admit(context.Background(), &all[i], x); err != nil || x.Response.Denied {
						b.Fatalf("denied %v: %v", x.Response.Denied, err)
					}
				}
				for i := range all {
					all[i].Request = identity.Request{
						Consumer: identity.Consumer{CustomID: fmt.Sprint("tenant-", i)},
						Method:   "GET", Path: "/records/7", Route: "records", Headers: []string{"u_42"},
					}
					decide(i)
				}
				b.ReportAllocs()
				used, i := usedCPU(b), 0
				for b.Loop() {
					i = (i + 31) % tenants
					decide(i)
				}
				b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
