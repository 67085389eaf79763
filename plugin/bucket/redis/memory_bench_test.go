package redis

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	// memoryBuckets is how many buckets are measured of each kind, and of the mix unless the environment's
	// MEMORY_BUCKETS says otherwise.
	memoryBuckets = 200_000
	// memoryLogs is how many sliding logs are measured: they are spent from many times.
	memoryLogs     = 20_000
	memoryTogether = 8     // buckets are spent from in one call, as by a request with so many limits
	memoryBatch    = 1_000 // calls travel together
	memoryDay      = 86_400 * limit.Second
)

// kind is a kind of bucket. Keys have the length that they have in earnest: "tenant-0001234", "u_00012345", a route.
type kind struct {
	name    string
	buckets int
	spent   int // how often each bucket is spent from
	limit   limit.Spec
	key     func(n int) policy.Key
	keys    int // of Redis that the buckets need
}

// wholeDay is a token bucket that is emptied at once: its key lives for a day, longer than it takes to load the others.
var wholeDay = limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: memoryDay}

// BenchmarkMemory measures the memory that a bucket takes in Redis: what used_memory grows by, divided by the number of
// buckets. So it includes Redis's own tables, and what its allocator rounds up. The buckets are spent from by the
// shipped script, as a request does.
func BenchmarkMemory(b *testing.B) {
	client := redistest.Single(b).Client(b)
	must(b, client, "script", "load", takeScript.source)
	log := limit.Spec{Algorithm: limit.SlidingLog, Quantity: limit.MaxLogQuantity, Window: memoryDay}
	n, logs := memoryBuckets, memoryLogs
	if testing.Short() {
		n, logs = n/10, logs/10
	}
	kinds := []kind{
		{"tenant/fields=1", n, 1, wholeDay, tenantKey(1), n},
		{"tenant/fields=4", n, 1, wholeDay, tenantKey(4), n / 4},
		{"tenant/fields=32", n, 1, wholeDay, tenantKey(32), n / 32},
		{"user", n, 1, wholeDay, userKey, n},
		{"user+endpoint", n, 1, wholeDay, userEndpointKey, n},
		{"ip", n, 1, wholeDay, ipKey, n},
		{"sliding-log/entries=1", logs, 1, log, userKey, 2 * logs},
		{"sliding-log/entries=16", logs, 16, log, userKey, 2 * logs},
		{"sliding-log/entries=256", logs / 10, 256, log, userKey, 2 * logs / 10},
	}
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) { measureMemory(b, client, k.buckets, k) })
	}
	b.Run("mixed", func(b *testing.B) {
		total := mixedBuckets(b, n)
		measureMemory(b, client, total, mix(total)...)
	})
}

// mixedBuckets returns a multiple of what the mix divides by: total, or the number in the environment.
func mixedBuckets(b *testing.B, total int) int {
	if text, ok := os.LookupEnv("MEMORY_BUCKETS"); ok {
		var err error
		if total, err = strconv.Atoi(text); err != nil || total < 1000 {
			b.Fatalf("MEMORY_BUCKETS is no number of buckets, at least 1000: %q", text)
		}
	}
	return total / 1000 * 1000
}

// mix is what a gateway with many tenants may hold: of 20 buckets 4 are of tenants and their endpoints, 10 of users, 1
// of a user at an endpoint, 4 of addresses, and 1 is a user's sliding log with four entries.
func mix(total int) []kind {
	part := total / 20
	log := limit.Spec{Algorithm: limit.SlidingLog, Quantity: 100, Window: memoryDay}
	logKey := func(n int) policy.Key {
		key := userKey(n)
		key.Policy = "exact"
		return key
	}
	return []kind{
		{"tenant", 4 * part, 1, wholeDay, tenantKey(4), part},
		{"user", 10 * part, 1, wholeDay, userKey, 10 * part},
		{"user+endpoint", part, 1, wholeDay, userEndpointKey, 0}, // in the users' strings
		{"ip", 4 * part, 1, wholeDay, ipKey, 4 * part},
		{"sliding-log", part, 4, log, logKey, part}, // of the entries alone
	}
}

// tenantKey makes the keys of tenants with so many buckets of their own: one for all, the others for an endpoint each.
func tenantKey(fields int) func(n int) policy.Key {
	return func(n int) policy.Key {
		tenant := fmt.Sprintf("tenant-%07d", n/fields)
		key := policy.Key{Namespace: "default", Policy: "daily", Group: policy.ByTenant, GroupID: tenant}
		if field := n % fields; field > 0 {
			key.Policy, key.Endpoint = "writes", fmt.Sprintf("POST /records/%d", field)
		}
		return key
	}
}

// userKey makes the keys of users, a hundred to a tenant.
func userKey(n int) policy.Key {
	return policy.Key{
		Namespace: "default", Policy: "burst", Group: policy.ByTenant, GroupID: fmt.Sprintf("tenant-%07d", n/100),
		Kind: policy.KindUser, Subject: fmt.Sprintf("u_%08d", n),
	}
}

func userEndpointKey(n int) policy.Key {
	key := userKey(n)
	key.Policy, key.Endpoint = "heavy", "GET /export"
	return key
}

func ipKey(n int) policy.Key {
	address := fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)
	return policy.Key{Namespace: "default", Policy: "visitors", Group: policy.ByIP, GroupID: address}
}

// measureMemory loads buckets and reports what they take.
func measureMemory(b *testing.B, client *redis.Client, buckets int, kinds ...kind) {
	for b.Loop() {
		flush(b, client)
		before := memory(b, client, "used_memory")
		keys := 0
		for i := range kinds {
			loadBuckets(b, client, &kinds[i])
			keys += kinds[i].keys
		}
		used := memory(b, client, "used_memory") - before
		if stored, err := client.DBSize(context.Background()).Result(); err != nil || stored != int64(keys) {
			b.Fatalf("Redis has %d keys (%v) after %d buckets were spent from, want %d", stored, err, buckets, keys)
		}
		b.ReportMetric(used/float64(buckets), "B/bucket")
		b.ReportMetric(float64(buckets), "buckets")
		b.ReportMetric(float64(keys), "keys")
		b.ReportMetric(memory(b, client, "used_memory_rss")/(1<<20), "rss-MiB")
	}
	b.ReportMetric(0, "ns/op") // loading is not what is measured
}

func memory(b *testing.B, client *redis.Client, name string) float64 {
	text, err := client.Info(context.Background(), "memory").Result()
	require.NoError(b, err)
	n, err := strconv.ParseFloat(parseInfo(text)[name], 64)
	require.NoError(b, err)
	return n
}

// loadBuckets spends from every bucket of a kind, as often as the kind says.
func loadBuckets(b *testing.B, client *redis.Client, k *kind) {
	l, err := limit.New(k.limit)
	require.NoError(b, err)
	p, cost := &policy.Policy{Limit: l}, int64(1)
	if k.limit.Algorithm == limit.TokenBucket {
		cost = l.Capacity()
	}
	plans, bounds := make([]scriptCall, memoryBatch), make([][]policy.Bound, memoryBatch)
	for range k.spent {
		for next := 0; next < k.buckets; {
			pipeline, queued := client.Pipeline(), 0
			for ; queued < memoryBatch && next < k.buckets; queued++ {
				bounds[queued] = bounds[queued][:0]
				for ; len(bounds[queued]) < memoryTogether && next < k.buckets; next++ {
					bounds[queued] = append(bounds[queued], policy.Bound{Policy: p, Key: k.key(next), Cost: cost})
				}
				send(b, pipeline, &plans[queued], bounds[queued])
			}
			spent(b, pipeline)
		}
	}
}

func send(b *testing.B, pipeline redis.Pipeliner, p *scriptCall, bounds []policy.Bound) {
	require.NoError(b, p.compile(bounds))
	pipeline.EvalSha(context.Background(), takeScript.sha, p.call.keys, p.request)
	p.reset()
}

// spent sends what is queued, and demands that nothing is denied.
func spent(b *testing.B, pipeline redis.Pipeliner) {
	replies, err := pipeline.Exec(context.Background())
	require.NoError(b, err)
	for _, reply := range replies {
		elements, err := reply.(*redis.Cmd).Slice()
		require.NoError(b, err)
		if len(elements) < 3 {
			continue
		}
		// The last but one is a value, or the numbers of those that deny.
		if denied, ok := elements[len(elements)-2].([]any); ok && len(denied) > 0 {
			b.Fatalf("buckets that were not spent from before deny: %v", denied)
		}
	}
}
