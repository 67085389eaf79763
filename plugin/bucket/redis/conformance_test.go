package redis

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/freeport"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// readClock is Lua that reads the time of a server that may read any key.
const readClock = `redis.call("GET", "clock")`

// turnedClock is the script whose time is the instant that clock has written.
var turnedClock = newFrame(standing(readClock))

// standing returns a fragment for a clock that stands still, whose time is read by a Lua expression. What Redis does by
// its own time it leaves out: keys do not expire, and nothing is swept, which a clock that steps back would notice.
func standing(time string) map[string]string {
	return map[string]string{"clock": `
local now, STEP_BACK = tonumber(` + time + `), 2 ^ 53
local redis = {pcall = redis.pcall, call = function(command, ...)
  if command == "PEXPIRE" then return end
  local key, value, option = ...
  if option == "PX" then return redis.call(command, key, value) end
  return redis.call(command, ...)
end}
`}
}

// turned makes a store split and list slots by the clock that its script reads.
func turned(s *Store) *Store { return splitBy(s, readClock) }

// splitBy makes a store split by the time that a Lua expression reads.
func splitBy(s *Store, time string) *Store {
	s.splitting, s.listing = newScript(assemble("split", standing(time))), newScript(assemble("slots", standing(time)))
	return s
}

// follow gives a store's node the time that its servers have.
func follow(s *Store, c clock) (*Store, clock) {
	s.clock = c.Now
	return s, c
}

// clockOfMaster returns Lua that reads the time of the master that runs it. Each master has one of the keys, and may
// not read the others.
func clockOfMaster(keys []string) string {
	return `(function()
  for _, key in ipairs({"` + strings.Join(keys, `", "`) + `"}) do
    local instant = redis.pcall("GET", key)
    if type(instant) == "string" then return instant end
  end
end)()`
}

// clock is a storetest.Clock. Each server has its time in a key, and the script reads it there: so requests at the same
// time never see it step back, in whatever order they were sent. Two servers may differ while it advances.
type clock struct {
	t       testing.TB
	servers []timeKey
	now     *atomic.Int64 // the time that all servers have, unless it is being advanced
}

// timeKey is the key that has the time of a server.
type timeKey struct {
	client *redis.Client
	key    string
}

// newClock returns the clock of some servers, which begins at storetest.Start.
func newClock(t testing.TB, servers ...*redis.Client) clock {
	t.Helper()
	c := clock{t: t, now: new(atomic.Int64)}
	c.now.Store(int64(storetest.Start))
	for _, client := range servers {
		c.add(client, "clock")
	}
	return c
}

// add adds a server, which has its time in a key.
func (c *clock) add(client *redis.Client, key string) {
	c.t.Helper()
	c.servers = append(c.servers, timeKey{client, key})
	require.NoError(c.t, client.Set(context.Background(), key, int64(storetest.Start), 0).Err(), "set the clock")
}

func (c clock) Now() limit.Micros { return limit.Micros(c.now.Load()) }

func (c clock) Advance(by limit.Micros) {
	for _, s := range c.servers {
		assert.NoError(c.t, s.client.IncrBy(context.Background(), s.key, int64(by)).Err(), "advance the clock")
	}
	c.now.Add(int64(by))
}

// direct is the least that a transport can be: one connection pool.
type direct struct {
	client redis.UniversalClient
	groups bool
}

func (d *direct) Groups() bool { return d.groups }

func (d *direct) Run(ctx context.Context, script *script, c *call) error {
	err := d.client.Process(ctx, c.forGoRedis(script))
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		if err := d.client.ScriptLoad(ctx, script.source).Err(); err != nil {
			return err
		}
		err = d.client.Process(ctx, c.forGoRedis(script))
	}
	if err != nil {
		return classify(err)
	}
	return nil
}

func (d *direct) Probe(context.Context) {}

func flush(t testing.TB, client redis.UniversalClient) {
	t.Helper()
	require.NoError(t, client.FlushAll(context.Background()).Err(), "empty Redis")
}

// A single Redis, whose requests are not grouped, is in TestSoakAStoreKeepsItsPromisesWithAPipelineAndWithout.
func TestSoakAStoreOfGroupsKeepsTheStoresPromises(t *testing.T) {
	client := redistest.Single(t).Client(t)
	storetest.RunApart(t, func(t *testing.T) (store.Store, storetest.Clock) {
		flush(t, client)
		return follow(turned(newStore("test", &direct{client, true}, turnedClock, quiet)), newClock(t, client))
	}, groupOf)
}

// comparing returns the suite for a transport: with random timelines, which are one request after the other, for one of
// the two.
func comparing(pipelined bool) func(*testing.T, storetest.Open) {
	if pipelined {
		return storetest.RunPromises
	}
	return storetest.Run
}

func TestSoakARealClusterKeepsTheStoresPromises(t *testing.T) {
	t.Parallel()
	nodes := covering(t, 0)
	keys, masters := keysOf(t, nodes), make([]*redis.Client, len(nodes.Masters))
	for i, master := range nodes.Masters {
		keys[i], masters[i] = "clock"+keys[i], master.Client(t)
	}
	time := clockOfMaster(keys)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, newFrame(standing(time)), among(nodes, pipelined))
		comparing(pipelined)(t, func(t *testing.T) (store.Store, storetest.Clock) {
			clock := newClock(t)
			for i, master := range masters {
				flush(t, master)
				clock.add(master, keys[i])
			}
			return follow(splitBy(c.store, time), clock)
		})
	})
}

func TestSoakAStoreKeepsItsPromisesWithAPipelineAndWithout(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		c := checked(t, turnedClock, at(server, pipelined))
		comparing(pipelined)(t, func(t *testing.T) (store.Store, storetest.Clock) {
			flush(t, client)
			return follow(turned(c.store), newClock(t, client))
		})
	})
}

// daily is a bound of so many tokens a day, whose bucket is its tenant's in a group.
func daily(t testing.TB, tokens int64, group policy.Group, tenant string) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: tokens, Window: 86400 * limit.Second})
	require.NoError(t, err)
	return policy.Bound{
		Policy: &policy.Policy{Name: "daily", Limit: l, Cost: -1},
		Key:    policy.Key{Namespace: "default", Policy: "daily", Group: group, GroupID: tenant},
		Cost:   1,
	}
}

// offer takes bounds from many goroutines through all stores in turn, and answers how many were admitted.
func offer(t testing.TB, bounds []policy.Bound, stores ...*Store) int64 {
	t.Helper()
	var turn, admitted atomic.Int64
	err := atOnce(16, 10, func() error {
		statuses := make([]decision.Status, len(bounds))
		store := stores[turn.Add(1)%int64(len(stores))]
		if err := store.Take(context.Background(), bounds, statuses); err != nil {
			return err
		}
		for i := range statuses {
			if !statuses[i].Admits() {
				return nil
			}
		}
		admitted.Add(1)
		return nil
	})
	assert.NoError(t, err)
	return admitted.Load()
}

// opened are the stores of two nodes: with the same settings, but not of one process.
func opened(t testing.TB, block schema.Redis) []*Store {
	t.Helper()
	var stores []*Store
	for range 2 {
		store, release, err := NewRegistry(quiet, nil).Open(block)
		require.NoError(t, err)
		t.Cleanup(release)
		stores = append(stores, store)
	}
	return stores
}

func TestTwoNodesShareALimitExactly(t *testing.T) {
	server := redistest.Single(t)
	client := server.Client(t)
	eachWay(t, func(t *testing.T, pipelined bool) {
		flush(t, client)
		stores := opened(t, at(server, pipelined))
		bounds := []policy.Bound{
			daily(t, 100, policy.ByTenant, "acme"), daily(t, 1000, policy.ByIP, "192.0.2.7"),
			daily(t, 1000, policy.ByAll, ""),
		}
		must(t, client, "config", "resetstat")
		if admitted := offer(t, bounds, stores...); admitted != 100 {
			t.Errorf("%d requests were admitted of a limit of 100", admitted)
		}
		// Each process may miss the script at first. The wire merges calls.
		n := calls(t, client)["evalsha"]
		assert.True(t, n <= 160+32 && n >= 160/maxMerged && (pipelined || n >= 160), "160 requests are %d EVALSHA", n)
	})
}

func TestInAClusterEachGroupOfARequestIsOneEvalsha(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3, 0)
	eachWay(t, func(t *testing.T, pipelined bool) {
		for _, master := range nodes.Masters {
			flush(t, master.Client(t))
			must(t, master.Client(t), "script", "load", takeScript.source)
			must(t, master.Client(t), "config", "resetstat")
		}
		stores := opened(t, among(nodes, pipelined))
		bounds := []policy.Bound{
			daily(t, 100, policy.ByTenant, "acme"), daily(t, 1000, policy.ByTenant, "acme"),
			daily(t, 1000, policy.ByIP, "192.0.2.7"), daily(t, 1000, policy.ByAll, ""),
		}
		bounds[1].Key.Policy = "other"
		if admitted := offer(t, bounds, stores...); admitted != 100 {
			t.Errorf("%d requests were admitted of a limit of 100", admitted)
		}
		evalshas, others := 0, 0
		for _, master := range nodes.Masters {
			calls := calls(t, master.Client(t))
			evalshas += calls["evalsha"]
			others += calls["eval"] + calls["script|load"]
		}
		// The groups of 160 requests, and what the 60 denied ones gave back: the address's and everybody's tokens.
		if want := 160*3 + 60*2; evalshas != want || others != 0 {
			t.Errorf("%d EVALSHA, want %d, and %d EVAL and SCRIPT LOAD", evalshas, want, others)
		}
		read := []policy.Bound{bounds[2], bounds[3]}
		read[0].Cost, read[1].Cost = 0, 0
		statuses := make([]decision.Status, 2)
		require.NoError(t, stores[0].Take(t.Context(), read, statuses))
		// A refund keeps what the bucket may have got back meanwhile: all of them together less than a token.
		if statuses[0].Used < 100 || statuses[0].Used > 101 || statuses[1].Used < 100 || statuses[1].Used > 101 {
			t.Errorf("100 admitted requests have spent %d and %d of the other groups' buckets",
				statuses[0].Used, statuses[1].Used)
		}
	})
}

func TestARequestWithoutBoundsDoesNotAskRedis(t *testing.T) {
	store, release, err := NewRegistry(quiet,
		nil).Open(schema.Redis{Host: "127.0.0.1", Port: int64(freeport.Port(t))})
	require.NoError(t, err)
	defer release()
	assert.NoError(t, store.Take(t.Context(), nil, nil))
}
