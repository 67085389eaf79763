package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// endpoints are so many bounds of one tenant, each with a bucket of its own.
func endpoints(t testing.TB, n int) []policy.Bound {
	var bounds []policy.Bound
	for i := range n {
		b := bound(t, "writes", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: 300 * 24 * hour})
		b.Key.Endpoint = fmt.Sprint("GET /", i)
		bounds = append(bounds, b)
	}
	return bounds
}

// A request reads and writes the buckets of its tenant and those of its endpoint, however many others there are.
func TestEachEndpointHasAString(t *testing.T) {
	f, _, _ := grouped(t, redistest.Single(t).Client(t))
	bounds := endpoints(t, 100)
	for i := range bounds {
		f.take(t, bounds[i])
	}
	for _, key := range f.client.Keys(t.Context(), "*{t=*").Val() {
		length := f.client.StrLen(t.Context(), key).Val()
		assert.EqualValues(t, headSize+entrySize, length, "%s has %d bytes, want one bucket", key, length)
	}
	n, err := f.Forget(t.Context(), []policy.Key{bounds[7].Key, bounds[80].Key})
	require.NoError(t, err)
	assert.Equal(t, 2, n, "buckets are forgotten")
	if s := f.take(t, costing(bounds[7], 0), costing(bounds[8], 0)); s[0].Used != 0 || s[1].Used != 1 {
		t.Errorf("%d and %d are used, want 0 and 1", s[0].Used, s[1].Used)
	}
}

// However the limits of a request are listed, it writes twice: the tenant's own buckets are neighbours, and so are
// those of an endpoint.
func TestARequestWritesTheBucketsOfAnEndpointAtOnce(t *testing.T) {
	client := redistest.Single(t).Client(t)
	for _, n := range []int{10, 100} {
		writeEndpoints(t, client, n)
	}
}

func writeEndpoints(t *testing.T, client *redis.Client, n int) {
	flush(t, client)
	f := &fixture{Store: newStore("test", &direct{client, false}, takeScript, quiet), client: client}
	own, all := endpoints(t, 1)[0], endpoints(t, n)
	own.Key.Endpoint = ""
	request := func(i int) []policy.Bound {
		bounds := []policy.Bound{own, all[i], own, all[i]}
		bounds[2].Key.Policy, bounds[3].Key.Policy = "reads", "reads"
		return bounds
	}
	for i := range all {
		f.take(t, request(i)...)
	}
	must(t, client, "config", "resetstat")
	for i := range all {
		for j, s := range f.take(t, request(i)...) {
			if want := []int64{int64(n + 1 + i), 2}[j%2]; s.Used != want {
				t.Errorf("bound %d of request %d has %d used, want %d", j, i, s.Used, want)
			}
		}
	}
	if calls := callsOf(t, client, "setrange"); calls > 2*n {
		t.Errorf("%d requests of as many endpoints have written %d times, want %d at most", n, calls, 2*n)
	}
}

// callsOf returns how often Redis has run a command since its statistics were reset.
func callsOf(t testing.TB, client *redis.Client, command string) (calls int) {
	t.Helper()
	info := client.Info(t.Context(), "commandstats").Val()
	_, after, found := strings.Cut(info, "cmdstat_"+command+":calls=")
	require.True(t, found, "no %s in %q", command, info)
	text, _, _ := strings.Cut(after, ",")
	calls, err := strconv.Atoi(text)
	require.NoError(t, err)
	return calls
}

// Two thousand tenants without a token left cost the bucket that all share nothing, though it is asked with theirs.
func TestExhaustedTenantsSpendNothingOfTheBucketThatAllShare(t *testing.T) {
	f, clock, transport := grouped(t, redistest.Single(t).Client(t))
	transport.refunding = func() { clock.Advance(20) } // in which 2 tokens come back
	all := everybody(bound(t, "all", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 100_000, Window: limit.Second}))
	ours := bound(t, "ours", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: hour})
	f.take(t, costing(all, 50_000))
	for i := range 2000 {
		ours.Key.GroupID = fmt.Sprint("tenant-", i)
		f.take(t, costing(ours, 10))
		if statuses := f.take(t, ours, all); statuses[0].Admits() {
			t.Fatal("an exhausted tenant is admitted")
		}
	}
	if used := f.take(t, costing(all, 0))[0].Used; used != 50_000-2*2000 {
		t.Errorf("%d of the bucket of all are used, want 46,000: what was before, less what came back meanwhile", used)
	}
}

func mustForget(t *testing.T, f *fixture, b policy.Bound) {
	t.Helper()
	if n, err := f.Forget(t.Context(), []policy.Key{b.Key}); n != 1 || err != nil {
		t.Fatalf("%d buckets, %v", n, err)
	}
}
