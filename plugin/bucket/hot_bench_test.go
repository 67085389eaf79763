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
			take := func(quantity int64) decision.Status {
				spec := limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity / int64(how.shards), Window: 86_400 * limit.Second}
				l, err := limit.New(spec)
				require.NoError(b, err)
				bound := policy.Bound{Policy: &policy.Policy{Name: "p", Limit: l, Accuracy: how.accuracy}, Cost: 1}
				bound.Key = policy.Key{
					Namespace: "default", Policy: "p", Group: policy.ByTenant,
					GroupID: fmt.Sprint("acme of ", quantity), Subject: strconv.Itoa(rand.IntN(how.shards)), Kind: policy.KindUser,
				}
				var statuses [1]decision.Status
				require.NoError(b, view.Take(context.Background(), []policy.Bound{bound}, statuses[:]))
				return statuses[0]
			}
			const offered = 1000
			admitted := 0
			for range offered {
				if s := take(offered); s.Admits() {
					admitted++
				}
			}
			before := of.Stats()[0].Redis.Calls
			var denied atomic.Int64
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if s := take(1e12); !s.Admits() {
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
