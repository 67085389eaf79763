package compare

import (
	"context"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/response"
)

// atHand is admit.Facts with all answers ready, as after the one question to the gateway.
type atHand struct{ identity.Request }

// Read implements admit.FactSource.
func (a *atHand) Read(_ context.Context, facts identity.Facts, _ *identity.Rules, req *identity.Request) error {
	req.Known |= facts
	req.Consumer.CustomID, req.CredentialID, req.IP = a.Consumer.CustomID, a.CredentialID, a.IP
	req.Method, req.Path, req.Route = a.Method, a.Path, a.Route
	req.Headers = append(req.Headers[:0], a.Headers...)
	return nil
}

// BenchmarkAdmit is the whole of admit.Path.Admit for a request of four bounds that is admitted: who it is, which
// limits apply, spending them, what they say together, and the headers. What is missing is the socket.
func BenchmarkAdmit(b *testing.B) {
	const bounds = 4
	redis := openRedis(b)
	settings := config(b, limits(bounds, plenty))
	snapshot, err := policy.FromConfig(settings)
	if err != nil {
		b.Fatal(err)
	}
	for _, buckets := range []struct {
		name string
		open func(testing.TB) admit.Buckets
	}{
		{"memory", func(testing.TB) admit.Buckets { return inMemory() }},
		{"lease", func(tb testing.TB) admit.Buckets { return leasing(tb, redis.store, 1) }},
	} {
		b.Run("buckets="+buckets.name, func(b *testing.B) {
			path := &admit.Path{
				Now: func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }, Elapsed: monotonic(),
				Buckets: buckets.open(b), Renderer: response.New(settings, nil),
			}
			path.Policies.Store(snapshot)
			facts := &atHand{identity.Request{
				Consumer: identity.Consumer{CustomID: "acme"}, Method: "GET", Path: "/records/7", Route: "records", Headers: []string{"u_42"},
			}}
			var x admit.Exchange
			b.ReportAllocs()
			used := usedCPU(b)
			for b.Loop() {
				if err := path.Admit(context.Background(), facts, &x); err != nil || x.Response.Denied || len(x.Decision.Statuses) != bounds {
					b.Fatalf("refused %v with %d bounds: %v", x.Response.Denied, len(x.Decision.Statuses), err)
				}
			}
			b.ReportMetric(float64((usedCPU(b)-used).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}
