package compare

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/resolve"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
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

// BenchmarkAdmit measures admit.Decider.Admit for an admitted request of four bounds: identify, resolve, take, combine
// and render, without the socket.
func BenchmarkAdmit(b *testing.B) {
	const bounds = 4
	redis := openRedis(b)
	settings := config(b, limits(bounds, plenty))
	plan, err := resolve.FromConfig(settings)
	require.NoError(b, err)
	for _, buckets := range []struct {
		name string
		open func(testing.TB) admit.Buckets
	}{
		{"memory", func(testing.TB) admit.Buckets { return inMemory() }},
		{"lease", func(tb testing.TB) admit.Buckets { return leasing(tb, redis.store, 1) }},
	} {
		b.Run("buckets="+buckets.name, func(b *testing.B) {
			decider := &admit.Decider{
				Now: func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }, Elapsed: monotonic(),
				Buckets: buckets.open(b), Renderer: response.New(settings, nil),
			}
			decider.Policies.Store(plan)
			facts := &fixedFacts{identity.Request{
				Consumer: identity.Consumer{CustomID: "acme"},
				Method:   "GET", Path: "/records/7", Route: "records", Headers: []string{"u_42"},
			}}
			var x admit.Exchange
			b.ReportAllocs()
			used := usedCPU(b)
			for b.Loop() {
				err := decider.Admit(context.Background(), facts, &x)
				if n := len(x.Decision.Statuses); err != nil || x.Response.Denied || n != bounds {
					b.Fatalf("denied %v with %d bounds: %v", x.Response.Denied, n, err)
				}
			}
			b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
