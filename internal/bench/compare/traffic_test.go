package compare

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

const (
	settling = time.Second     // of traffic before the measurement: leases grow to its rate
	watched  = 3 * time.Second // of traffic that is measured
	senders  = 8               // callers that share the rate
)

// traffic is requests of one tenant at a steady rate that does not depend on answers.
type traffic struct {
	perSecond int
	nodes     []admit.Buckets
	bounds    []policy.Bound
	// newUsers means that every request has a new user.
	newUsers bool
}

// outcome counts decisions.
type outcome struct{ admitted, denied atomic.Int64 }

// sent returns the number of decided requests.
func (o *outcome) sent() int64 { return o.admitted.Load() + o.denied.Load() }

// flow sends requests for a duration, to the nodes in turn, and waits for the last answer.
func (t *traffic) flow(b *testing.B, d time.Duration, o *outcome) {
	b.Helper()
	var sending sync.WaitGroup
	start := time.Now()
	for sender := range senders {
		sending.Go(func() {
			bounds, statuses := slices.Clone(t.bounds), make([]decision.Status, len(t.bounds))
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for n := sender; ; {
				<-ticker.C
				passed := time.Since(start)
				for due := int(min(passed, d).Seconds() * float64(t.perSecond)); n < due; n += senders {
					t.setUser(bounds, start, n)
					admitted, err := take(t.nodes[n/senders%len(t.nodes)], bounds, statuses)
					switch {
					case err != nil:
						b.Error(err)
						return
					case admitted:
						o.admitted.Add(1)
					default:
						o.denied.Add(1)
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

// setUser gives request n of a flow a new user, if the traffic has new users.
func (t *traffic) setUser(bounds []policy.Bound, start time.Time, n int) {
	if !t.newUsers {
		return
	}
	user := "u_" + strconv.FormatInt(start.UnixNano(), 36) + "_" + strconv.Itoa(n)
	for i := range bounds {
		if bounds[i].Key.Kind == policy.KindUser {
			bounds[i].Key.Subject = user
		}
	}
}

// watch measures settled traffic: its decisions, and the calls that Redis gets.
func (t *traffic) watch(b *testing.B, redis *server) (o *outcome, calls uint64) {
	b.Helper()
	t.flow(b, settling, new(outcome))
	o = new(outcome)
	before := redis.calls(b)
	t.flow(b, shortened(watched), o)
	return o, redis.calls(b) - before
}

// nodes returns the buckets of n nodes that lease from one Redis.
func nodes(b *testing.B, redis *server, n int) []admit.Buckets {
	redis.empty(b)
	list := make([]admit.Buckets, n)
	for i := range list {
		list[i] = leasing(b, redis.store, n)
	}
	return list
}

// BenchmarkTraffic sends 5,000 requests a second of one tenant, with limits per tenant, per tenant and endpoint, per
// user and for all. It reports the number of calls that Redis decides for 1,000 of them. A smaller limit has smaller
// leases, and a new user has none.
func BenchmarkTraffic(b *testing.B) {
	const perSecond = 5000
	redis := openRedis(b)
	for _, row := range []struct {
		users    string
		nodes    int
		limit    int64 // of each of the four, per second
		newUsers bool
	}{
		{"one-hot", 1, 100_000, false},
		{"one-hot", 1, 10_000, false},
		{"one-hot", 4, 100_000, false},
		{"one-hot", 4, 10_000, false},
		{"always-new", 1, 100_000, true},
	} {
		b.Run(fmt.Sprintf("users=%s/limit-per-s=%d/nodes=%d", row.users, row.limit, row.nodes), func(b *testing.B) {
			t := traffic{perSecond: perSecond, newUsers: row.newUsers, nodes: nodes(b, redis, row.nodes)}
			t.bounds = boundsOf(b, limits(4, quota{row.limit, time.Second}), "acme", "u_42")
			for b.Loop() {
				o, calls := t.watch(b, redis)
				if o.denied.Load() > 0 {
					b.Errorf("%d requests denied with tokens left", o.denied.Load())
				}
				b.ReportMetric(1000*float64(calls)/float64(o.sent()), "calls/1000")
				b.ReportMetric(float64(o.sent())/shortened(watched).Seconds(), "decisions/s")
			}
			b.ReportMetric(0, "ns/op") // it has no meaning for runs of fixed length
		})
	}
}

// BenchmarkDenials sends a flood of requests with four scopes of which one is exhausted. It reports the number of
// calls that Redis decides for 1,000 denials. A quota stays exhausted; a bucket gets tokens all the time, which are
// spent.
func BenchmarkDenials(b *testing.B) {
	redis := openRedis(b)
	quotaOf10 := schema.Limit{
		Name: "user-quota", Scope: schema.ScopeUser, Algorithm: schema.AlgorithmFixedWindow, Limit: 10, WindowSize: 86400,
	}
	bucketOf100 := schema.Limit{
		Name: "user-rate", Scope: schema.ScopeUser, Algorithm: schema.AlgorithmTokenBucket, Limit: 100, WindowSize: 1,
	}
	bucketOf1000 := bucketOf100
	bucketOf1000.Limit = 1000
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
		name := fmt.Sprintf("store=%s/user-limit=%s/offered-per-s=%d", row.store, row.exhausted, row.perSecond)
		b.Run(name, func(b *testing.B) {
			t := traffic{perSecond: row.perSecond, nodes: nodes(b, redis, 1)}
			if row.store == "redis" {
				t.nodes = []admit.Buckets{redis.store}
			}
			list := limits(4, quota{1e9, time.Second})
			list[2] = row.limit
			t.bounds = boundsOf(b, list, "acme", "u_42")
			for b.Loop() {
				o, calls := t.watch(b, redis)
				b.ReportMetric(1000*float64(calls)/float64(o.denied.Load()), "calls/1000-denied")
				b.ReportMetric(float64(o.denied.Load())/shortened(watched).Seconds(), "denied/s")
				b.ReportMetric(float64(o.admitted.Load())/shortened(watched).Seconds(), "admitted/s")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
