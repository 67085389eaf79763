package compare

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	settling = time.Second     // paced traffic before it is measured: leases grow to its rate
	watched  = 3 * time.Second // and for how long it is
	senders  = 8               // callers that share the rate
)

// traffic is requests of one tenant at a steady rate, which does not wait for answers to catch up.
type traffic struct {
	perSecond int
	nodes     []admit.Buckets
	bounds    []policy.Bound
	// strangers says that every request has a user whom nobody has seen before.
	strangers bool
}

// outcome is what became of requests.
type outcome struct{ admitted, refused atomic.Int64 }

// sent is how many requests were decided.
func (o *outcome) sent() int64 { return o.admitted.Load() + o.refused.Load() }

// flow sends for a while and waits for the last answer. Requests go to the nodes in turn.
func (t *traffic) flow(b *testing.B, d time.Duration, o *outcome) {
	b.Helper()
	var sending sync.WaitGroup
	began := time.Now()
	for sender := range senders {
		sending.Go(func() {
			bounds, statuses := slices.Clone(t.bounds), make([]decision.Status, len(t.bounds))
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for n := sender; ; {
				<-ticker.C
				passed := time.Since(began)
				for due := int(min(passed, d).Seconds() * float64(t.perSecond)); n < due; n += senders {
					t.name(bounds, began, n)
					admitted, err := take(t.nodes[n/senders%len(t.nodes)], bounds, statuses)
					switch {
					case err != nil:
						b.Error(err)
						return
					case admitted:
						o.admitted.Add(1)
					default:
						o.refused.Add(1)
					}
				}
				if passed >= d {
					return
				}
			}
		})
	}
	sending.Wait()
}

// name gives request n of a flow a user of its own, if it is to have one.
func (t *traffic) name(bounds []policy.Bound, began time.Time, n int) {
	if !t.strangers {
		return
	}
	user := "u_" + strconv.FormatInt(began.UnixNano(), 36) + "_" + strconv.Itoa(n)
	for i := range bounds {
		if bounds[i].Key.Kind == policy.KindUser {
			bounds[i].Key.Subject = user
		}
	}
}

// watch measures the traffic once it has settled: what became of it, and how many calls Redis got meanwhile.
func (t *traffic) watch(b *testing.B, redis *server) (o *outcome, calls uint64) {
	b.Helper()
	t.flow(b, settling, new(outcome))
	o = new(outcome)
	before := redis.calls(b)
	t.flow(b, watched, o)
	return o, redis.calls(b) - before
}

// nodes are so many nodes that lease from one Redis.
func nodes(b *testing.B, redis *server, n int) []admit.Buckets {
	redis.empty(b)
	list := make([]admit.Buckets, n)
	for i := range list {
		list[i] = leasing(b, redis.store, n)
	}
	return list
}

// BenchmarkTraffic is 5,000 requests a second of one tenant, under limits per tenant, per tenant and endpoint, per user
// and over all, and reports how many EVALSHA Redis executes for 1,000 of them. A limit that is small beside the traffic
// allows smaller leases; a user who was not seen before has none.
func BenchmarkTraffic(b *testing.B) {
	const perSecond = 5000
	redis := openRedis(b)
	for _, row := range []struct {
		users     string
		nodes     int
		limit     int64 // of each of the four, per second
		strangers bool
	}{
		{"one-hot", 1, 100_000, false},
		{"one-hot", 1, 10_000, false},
		{"one-hot", 4, 100_000, false},
		{"one-hot", 4, 10_000, false},
		{"always-new", 1, 100_000, true},
	} {
		b.Run(fmt.Sprintf("users=%s/limit-per-s=%d/nodes=%d", row.users, row.limit, row.nodes), func(b *testing.B) {
			t := traffic{perSecond: perSecond, strangers: row.strangers, nodes: nodes(b, redis, row.nodes)}
			t.bounds = resolve(b, limits(4, quota{row.limit, time.Second}), "acme", "u_42")
			for b.Loop() {
				o, calls := t.watch(b, redis)
				if o.refused.Load() > 0 {
					b.Errorf("%d requests refused, though there is room", o.refused.Load())
				}
				b.ReportMetric(1000*float64(calls)/float64(o.sent()), "evalsha/1000")
				b.ReportMetric(float64(o.sent())/watched.Seconds(), "decisions/s")
			}
			b.ReportMetric(0, "ns/op") // of a run of some seconds it says nothing
		})
	}
}

// BenchmarkRefusals is a flood of requests with four scopes of which one is used up, and reports how many EVALSHA Redis
// executes for 1,000 refusals. A quota is used up for long; a bucket gets tokens back all the time, and they are spent.
func BenchmarkRefusals(b *testing.B) {
	redis := openRedis(b)
	quotaOf10 := schema.Limit{Name: "user-quota", Scope: schema.ScopeUser, Algorithm: schema.AlgorithmFixedWindow, Limit: 10, WindowSize: 86400}
	bucketOf100 := schema.Limit{Name: "user-rate", Scope: schema.ScopeUser, Algorithm: schema.AlgorithmTokenBucket, Limit: 100, WindowSize: 1}
	bucketOf1000 := schema.Limit{Name: "user-rate", Scope: schema.ScopeUser, Algorithm: schema.AlgorithmTokenBucket, Limit: 1000, WindowSize: 1}
	for _, row := range []struct {
		store, exhausted string
		limit            schema.Limit
		perSecond        int
	}{
		{"redis", "10-a-day", quotaOf10, 5000},
		{"lease", "10-a-day", quotaOf10, 1000},
		{"lease", "10-a-day", quotaOf10, 5000},
		{"lease", "10-a-day", quotaOf10, 50_000},
		{"lease", "100-a-second", bucketOf100, 10_000},
		{"lease", "100-a-second", bucketOf100, 50_000},
		{"lease", "1000-a-second", bucketOf1000, 50_000},
	} {
		b.Run(fmt.Sprintf("store=%s/user-limit=%s/offered-per-s=%d", row.store, row.exhausted, row.perSecond), func(b *testing.B) {
			t := traffic{perSecond: row.perSecond, nodes: nodes(b, redis, 1)}
			if row.store == "redis" {
				t.nodes = []admit.Buckets{redis.store}
			}
			list := limits(4, quota{1e9, time.Second})
			list[2] = row.limit
			t.bounds = resolve(b, list, "acme", "u_42")
			for b.Loop() {
				o, calls := t.watch(b, redis)
				b.ReportMetric(1000*float64(calls)/float64(o.refused.Load()), "evalsha/1000-refused")
				b.ReportMetric(float64(o.refused.Load())/watched.Seconds(), "refused/s")
				b.ReportMetric(float64(o.admitted.Load())/watched.Seconds(), "admitted/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
