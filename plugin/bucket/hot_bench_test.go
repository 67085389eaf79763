package bucket_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// BenchmarkHotKey measures three ways to count the requests of one hot tenant in one Redis: each request at one bucket,
// each at a random one of several buckets with equal parts of the limit, and from leases of one bucket. It reports what
// a decision costs the process and in calls of Redis, and how much of a limit of a thousand is admitted if a thousand
// requests are sent, in percent.
func BenchmarkHotKey(b *testing.B) {
	for _, how := range []struct {
		name     string
		shards   int
		accuracy policy.Accuracy
	}{{"exact", 1, policy.Exact}, {"sharded=8", 8, policy.Exact}, {"leased", 1, policy.Leased}} {
		b.Run("count="+how.name, func(b *testing.B) {
			server := redistest.Single(b)
			of, _ := serving(b, time.Minute)
			config := inRedis(server.Port)
			view := opened(b, of, &config)
			bound := func(quantity int64) policy.Bound {
				l, err := limit.New(limit.Spec{
					Algorithm: limit.FixedWindow, Quantity: quantity / int64(how.shards), Window: 86_400 * limit.Second,
				})
				require.NoError(b, err)
				return policy.Bound{
					Policy: &policy.Policy{Name: "p", Limit: l, Accuracy: how.accuracy}, Cost: 1,
					Key: policy.Key{
						Namespace: "default", Policy: "p", Group: policy.ByTenant, GroupID: fmt.Sprint("acme of ", quantity),
						Kind: policy.KindUser,
					},
				}
			}
			take := func(of policy.Bound) decision.Status {
				of.Key.Subject = strconv.Itoa(rand.IntN(how.shards))
				var statuses [1]decision.Status
				require.NoError(b, view.Take(context.Background(), []policy.Bound{of}, statuses[:]))
				return statuses[0]
			}
			const offered = 1000
			admitted, small, large := 0, bound(offered), bound(1e12)
			for range offered {
				if s := take(small); s.Admits() {
					admitted++
				}
			}
			if how.accuracy == policy.Leased {
				await.That(b, "a node leases", func() bool { return take(large).Source == decision.Leased })
			}
			before := of.Stats()[0].Redis.Calls
			var denied atomic.Int64
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if s := take(large); !s.Admits() {
						denied.Add(1)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(of.Stats()[0].Redis.Calls-before)/float64(b.N), "calls/op")
			b.ReportMetric(100*float64(admitted)/offered, "admitted-%")
			if denied.Load() > 0 {
				b.Errorf("%d of %d requests below the limit were denied", denied.Load(), b.N)
			}
		})
	}
}
