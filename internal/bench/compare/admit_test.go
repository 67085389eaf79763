package compare

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/usage"
)

// fixedFacts implements admit.FactSource with the facts of one request.
type fixedFacts struct{ identity.Request }

// Read implements admit.FactSource.
func (f *fixedFacts) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Consumer.CustomID, req.CredentialID, req.IP = f.Consumer.CustomID, f.CredentialID, f.IP
	req.Method, req.Path, req.Route = f.Method, f.Path, f.Route
	req.Headers = append(req.Headers[:0], f.Headers...)
	return nil
}

// requestOf returns the facts of a request of a tenant.
func requestOf(tenant string) fixedFacts {
	return fixedFacts{identity.Request{
		Consumer: identity.Consumer{CustomID: tenant},
		Method:   "GET", Path: "/records/7", Route: "records", Headers: []string{"u_42"},
	}}
}

// measureAdmit measures admit.Decider.Admit for admitted requests of four bounds of tenants in turn: identify, resolve,
// take, combine and render, without the socket.
func measureAdmit(b *testing.B, buckets admit.Buckets, tenants int, observers ...admit.Observer) {
	const bounds = 4
	settings := config(b, limits(bounds, plenty))
	plan, err := resolve.FromConfig(settings)
	require.NoError(b, err)
	decider := &admit.Decider{
		Now: func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }, Elapsed: monotonic(),
		Buckets: buckets, Renderer: response.New(settings, nil), Observers: observers,
	}
	decider.Policies.Store(plan)
	all, x := make([]fixedFacts, tenants), new(admit.Exchange)
	decide := func(i int) {
		err := decider.Admit(context.Background(), &all[i], x)
		if n := len(x.Decision.Statuses); err != nil || x.Response.Denied || n != bounds {
			b.Fatalf("denied %v with %d bounds: %v", x.Response.Denied, n, err)
		}
	}
	for i := range all {
		all[i] = requestOf(fmt.Sprint("tenant-", i))
		decide(i)
	}
	b.ReportAllocs()
	used, i := usedCPU(b), 0
	for b.Loop() {
		i = (i + 31) % tenants
		decide(i)
	}
	b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// BenchmarkAdmit measures the whole path of requests of one tenant.
func BenchmarkAdmit(b *testing.B) {
	redis := openRedis(b)
	b.Run("buckets=memory", func(b *testing.B) { measureAdmit(b, inMemory(), 1) })
	b.Run("buckets=lease", func(b *testing.B) { measureAdmit(b, leasing(b, redis.store), 1) })
}

// BenchmarkUsage measures the whole path over memory without usage and with it.
func BenchmarkUsage(b *testing.B) {
	for _, tenants := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("tenants=%d/usage=off", tenants), func(b *testing.B) { measureAdmit(b, inMemory(), tenants) })
		b.Run(fmt.Sprintf("tenants=%d/usage=on", tenants), func(b *testing.B) {
			measureAdmit(b, inMemory(), tenants, usage.NewCounter())
		})
	}
}
