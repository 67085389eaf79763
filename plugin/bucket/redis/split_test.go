package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
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

func TestNoStringHoldsManyBuckets(t *testing.T) {
	f, clock, _ := grouped(t, redistest.Single(t).Client(t))
	bounds := endpoints(t, 1000)
	first := f.take(t, costing(bounds[0], 10))
	for i := range bounds {
		f.take(t, bounds[i])
	}
	longest := 0
	for _, key := range f.client.Keys(t.Context(), "*{t=*").Val() {
		longest = max(longest, len(f.client.Get(t.Context(), key).Val()))
	}
	assert.True(t, longest <= headSize+33*entrySize, "a string has %d bytes, with 1,000 buckets", longest)
	// Another node, which knows nothing of it, finds the same, and a receipt from before counts.
	other := &fixture{Store: turned(newStore("other", f.transport, turnedClock, quiet)), client: f.client}
	other.Settle(t.Context(), []policy.Bound{costing(bounds[0], 10)}, first, nil)
	assert.EqualValues(t, -10, first[0].Settled, "%d of -10 come back after the subject was split", first[0].Settled)
	for i := range bounds {
		if s := other.take(t, costing(bounds[i], 0))[0]; s.Used != 1 {
			t.Fatalf("bucket %d has %d used, want 1", i, s.Used)
		}
	}
	if n, err := f.Forget(t.Context(), []policy.Bound{bounds[7], bounds[800]}); n != 2 || err != nil {
		t.Errorf("%d of two buckets are forgotten, %v", n, err)
	}
	if s := f.take(t, costing(bounds[7], 0), costing(bounds[8], 0)); s[0].Used != 0 || s[1].Used != 1 {
		t.Errorf("%d and %d are used, want 0 and 1", s[0].Used, s[1].Used)
	}
	clock.Advance(1)
	// All is lost, and both nodes still take the subject for a split one.
	flush(t, f.client)
	newClock(t, f.client)
	for _, node := range []*fixture{f, other} {
		if s := node.take(t, bounds[3], costing(bounds[4], 0)); s[1].Used != 0 {
			t.Errorf("%+v, want nothing used", s)
		}
	}
	if s := f.take(t, costing(bounds[3], 0))[0]; s.Used != 2 {
		t.Errorf("%d used, want 2: one by each node", s.Used)
	}
}

// A head that is lost alone takes its chunks with it, and what they hold does not come back when there are chunks
// again.
func TestChunksWithoutTheirHeadAreEmpty(t *testing.T) {
	f, _, _ := grouped(t, redistest.Single(t).Client(t))
	bounds := endpoints(t, 40)
	for i := range bounds {
		f.take(t, costing(bounds[i], 5))
	}
	must(t, f.client, "del", subjectKey(bounds[0]))
	for i := range bounds {
		if s := f.take(t, bounds[i])[0]; s.Used != 1 {
			t.Fatalf("bucket %d has %d used, want 1", i, s.Used)
		}
	}
}

func TestAHeadLivesAsLongAsItsChunks(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	f := &fixture{Store: newStore("test", &direct{client, false}, takeScript, quiet), client: client}
	for i := range 40 {
		b := bound(t, "short", limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: 60 * limit.Second})
		b.Key.Endpoint = fmt.Sprint("GET /", i)
		f.take(t, b)
	}
	long := endpoints(t, 3)
	f.take(t, costing(long[2], 900))
	head := client.PTTL(t.Context(), subjectKey(long[0])).Val()
	for _, key := range client.Keys(t.Context(), "*:#*").Val() {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > head {
			t.Errorf("%s lives for %v, and its head for %v", key, ttl, head)
		}
	}
	if head.Hours() < 24 {
		t.Errorf("the head lives for %v, and a chunk of it for longer", head)
	}
}

// However often a subject is split, its head outlives the last of its chunks by an hour at most.
func TestAHeadOutlivesItsChunksByAnHourAtMost(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	f := &fixture{Store: newStore("test", &direct{client, false}, takeScript, quiet), client: client}
	bounds := endpoints(t, 500)
	for i := range bounds {
		f.take(t, bounds[i])
	}
	if level := f.levels.level(&bounds[0].Key); level < 3 {
		t.Fatalf("the subject of 500 buckets has level %d: want it split three times", level)
	}
	var longest time.Duration
	for _, key := range client.Keys(t.Context(), "*:#*").Val() {
		longest = max(longest, client.PExpireTime(t.Context(), key).Val())
	}
	head := client.PExpireTime(t.Context(), subjectKey(bounds[0])).Val()
	if beyond := head - longest; beyond < 0 || beyond > time.Hour+time.Second {
		t.Errorf("the head outlives its chunks by %v, want an hour at most", beyond)
	}
}

// A request with a bucket of its tenant and those of one endpoint reads the head and one chunk, whatever there is
// beside.
func TestARequestReadsTheHeadAndTheChunkOfItsEndpoint(t *testing.T) {
	client := redistest.Single(t).Client(t)
	flush(t, client)
	f := &fixture{Store: newStore("test", &direct{client, false}, takeScript, quiet), client: client}
	brief := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1000, Window: 24 * hour}
	tenant, all := bound(t, "own", brief), endpoints(t, 100)
	for i := range all {
		second := all[i]
		second.Key.Policy = "reads"
		f.take(t, tenant, all[i], second)
	}
	var p scriptCall
	p.levels = &f.levels
	second := all[7]
	second.Key.Policy = "reads"
	require.NoError(t, p.compile([]policy.Bound{tenant, all[7], second}))
	if len(p.subjects) != 2 || p.subjects[1].level < 2 {
		t.Errorf("a request reads %d strings, want 2: %q of level %d", len(p.subjects), p.call.keys, p.subjects[0].level)
	}
	// The chunk's life outgrows the head's in the request that spends from the head, too.
	if s := f.take(t, costing(tenant, 10), costing(all[7], 900)); s[0].Used < 105 {
		t.Errorf("%d used of the tenant's bucket", s[0].Used)
	}
	s := f.take(t, costing(tenant, 0), costing(all[7], 0), costing(second, 0))
	if s[0].Used < 105 || s[1].Used != 901 || s[2].Used != 1 {
		t.Errorf("%d, %d and %d used, want 110 or a little less, 901 and 1", s[0].Used, s[1].Used, s[2].Used)
	}
	// A head that is left without buckets keeps its chunks.
	mustForget(t, f, tenant)
	if s := f.take(t, costing(tenant, 0), costing(all[7], 0)); s[0].Used != 0 || s[1].Used != 901 {
		t.Errorf("%d and %d used, want 0 and 901", s[0].Used, s[1].Used)
	}
	head := client.PTTL(t.Context(), subjectKey(tenant)).Val()
	for _, key := range client.Keys(t.Context(), "*:#*").Val() {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > head {
			t.Errorf("%s lives for %v, and its head for %v", key, ttl, head)
		}
	}
}

// However the limits of a request are listed, it writes twice: the tenant's own buckets are neighbours, and so are
// those of an endpoint, in a string of their own or not.
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

// Two nodes, which split and forget and know different levels, decide and remember as one that keeps all in one place.
func TestNodesThatSplitASubjectDecideAsOne(t *testing.T) {
	client := redistest.Single(t).Client(t)
	small := turnedClock.source // with values that are long, and crowded, from two and three buckets on
	for number, less := range map[string]string{"LONG = 300": "LONG = 42", "FULL = 1189": "FULL = 79"} {
		before := small
		if small = strings.Replace(small, number, less, 1); small == before {
			t.Fatalf("the script has no %s", number)
		}
	}
	script := newScript(small)
	rapid.Check(t, func(rt *rapid.T) {
		flush(t, client)
		w := drawBuckets(rt)
		nodes := make([]*Store, 2)
		for i := range nodes {
			nodes[i] = turned(newStore("test", &direct{client, false}, script, quiet))
			nodes[i].clock = func() limit.Micros { return w.now }
		}
		clock := newClock(t, client)
		for step := range 60 {
			w.turn(rt)
			clock.Advance(w.now - clock.Now())
			node, bounds := nodes[rapid.IntRange(0, 1).Draw(rt, "node")], w.request(rt)
			if rapid.IntRange(0, 9).Draw(rt, "forgets") == 7 {
				key := bounds[0].Key
				if _, err := node.Forget(context.Background(), bounds[:1]); err != nil {
					rt.Fatal(err)
				}
				delete(w.kept, key)
			}
			got := make([]decision.Status, len(bounds))
			require.NoError(rt, node.Take(context.Background(), bounds, got))
			want := w.take(bounds, idsOf(got))
			for i := range got {
				if got[i] != want[i] {
					rt.Fatalf("request %d, bound %d of %s:\n got %+v\nwant %+v", step, i, bounds[i].Key.Endpoint, got[i], want[i])
				}
			}
		}
	})
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

// idsOf returns the ids of the slots that a request took.
func idsOf(statuses []decision.Status) []limit.SlotID {
	ids := make([]limit.SlotID, len(statuses))
	for i := range ids {
		ids[i] = limit.SlotID{statuses[i].Receipt.Debt, statuses[i].Receipt.Mark}
	}
	return ids
}

func mustForget(t *testing.T, f *fixture, b policy.Bound) {
	t.Helper()
	if n, err := f.Forget(t.Context(), []policy.Bound{b}); n != 1 || err != nil {
		t.Fatalf("%d buckets, %v", n, err)
	}
}
