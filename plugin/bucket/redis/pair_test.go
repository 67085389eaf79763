package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// byParity keeps the buckets of about every second policy apart, so that most requests meet both Redis.
func byParity(key *policy.Key) bool { return crc32.ChecksumIEEE([]byte(key.Policy))%2 == 1 }

// named returns the name of the n-th policy whose buckets are kept apart, or are not.
func named(n int, apart bool) string {
	for i := 0; ; i++ {
		name := fmt.Sprint("p", i)
		if byParity(&policy.Key{Policy: name}) != apart {
			continue
		}
		if n--; n < 0 {
			return name
		}
	}
}

// twoServers starts two servers and returns a client of each.
func twoServers(t *testing.T) [2]*redis.Client {
	t.Helper()
	return [2]*redis.Client{redistest.Single(t).Client(t), redistest.Single(t).Client(t)}
}

// pairOn makes a pair over two servers, which it empties.
func pairOn(t *testing.T, clients [2]*redis.Client) *Pair {
	t.Helper()
	over := func(client *redis.Client) *Store {
		flush(t, client)
		return newStore("test", &direct{client, false}, takeScript, quiet)
	}
	return NewPair(over(clients[0]), over(clients[1]), byParity)
}

// pairOf makes a pair over two servers, which it empties, and their clock.
func pairOf(t *testing.T, clients [2]*redis.Client, groups bool) (*Pair, clock) {
	t.Helper()
	return pairOver(t, clients, func(_ int, d *direct) transport {
		d.groups = groups
		return d
	})
}

// pairOver makes a pair over two servers, which it empties, and their clock. wrap returns the transport of a server.
func pairOver(t *testing.T, clients [2]*redis.Client, wrap func(server int, d *direct) transport) (*Pair, clock) {
	t.Helper()
	var stores [2]*Store
	for i, client := range clients {
		flush(t, client)
		stores[i] = turned(newStore("test", wrap(i, &direct{client: client}), turnedClock, quiet))
	}
	return NewPair(stores[0], stores[1], byParity), newClock(t, clients[:]...)
}

// placed returns which call of a pair by parity decides a bucket: there is one for each Redis, or for each group in it.
func placed(groups bool) storetest.Place {
	return func(key *policy.Key) string {
		place := strconv.FormatBool(byParity(key))
		if groups {
			place += "{" + key.GroupID + "}"
		}
		return place
	}
}

func TestSoakAPairKeepsTheStoresPromises(t *testing.T) {
	clients := twoServers(t)
	for _, groups := range []bool{false, true} {
		t.Run("groups="+strconv.FormatBool(groups), func(t *testing.T) {
			storetest.RunApart(t, func(t *testing.T) (store.Store, storetest.Clock) {
				return pairOf(t, clients, groups)
			}, placed(groups))
		})
	}
}

// One sliding log has two bounds in shadow, of which the first spends what is refunded as the other Redis denies.
func TestABoundShowsNothingOfWhatTheOtherRedisDenied(t *testing.T) {
	pair, _ := pairOf(t, twoServers(t), false)
	empty := hourly(t, named(0, true), 1, 1)
	shadow := hourly(t, named(0, false), 2, 2)
	l, err := limit.New(limit.Spec{Algorithm: limit.SlidingLog, Quantity: 2, Window: 3600 * limit.Second})
	require.NoError(t, err)
	shadow.Policy.Limit, shadow.Policy.Mode = l, policy.Shadow
	require.NoError(t, pair.Take(t.Context(), []policy.Bound{empty}, make([]decision.Status, 1)))
	statuses := make([]decision.Status, 3)
	require.NoError(t, pair.Take(t.Context(), []policy.Bound{shadow, shadow, empty}, statuses))
	for i, s := range statuses[:2] {
		if s.Used != 0 || s.Wait != 0 || s.Charged {
			t.Errorf("bound %d of the shadow has %d used, wait %d, charged %t: want an empty bucket", i, s.Used, s.Wait, s.Charged)
		}
	}
	assert.False(t, statuses[2].Admits(), "an empty bucket admits")
}

// hourly returns a bound of so many tokens an hour, from the bucket of a policy.
func hourly(t *testing.T, name string, quantity, cost int64) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: quantity, Window: 3600 * limit.Second})
	require.NoError(t, err)
	return policy.Bound{
		Policy: &policy.Policy{Name: name, Limit: l},
		Key:    policy.Key{Namespace: "default", Policy: name, Group: policy.ByTenant, GroupID: "acme"},
		Cost:   cost,
	}
}

// usedOf returns what is spent of each bound's bucket.
func usedOf(t *testing.T, store *Pair, bounds []policy.Bound) []int64 {
	t.Helper()
	used := make([]int64, len(bounds))
	for i := range bounds {
		b, status := bounds[i], make([]decision.Status, 1)
		b.Cost = 0
		if err := store.Take(t.Context(), []policy.Bound{b}, status); err != nil || status[0].Source != decision.Redis {
			t.Fatalf("read %s: %+v, %v", b.Key.Policy, status[0], err)
		}
		used[i] = status[0].Used
	}
	return used
}

func TestASettlementReachesTheRedisThatWasSpentFromThoughTheOtherIsAway(t *testing.T) {
	one, other := named(0, false), named(0, true)
	bounds := []policy.Bound{hourly(t, one, 10, 3), hourly(t, other, 10, 4)}
	clients := twoServers(t)
	for unavailable := range bounds {
		pair, statuses := pairOn(t, clients), make([]decision.Status, 2)
		require.NoError(t, pair.Take(t.Context(), bounds, statuses))
		broken := []*Store{pair.main, pair.second}[unavailable]
		reachable := broken.transport
		broken.transport = failing{reachable}
		require.NoError(t, pair.Settle(t.Context(), bounds, statuses, []int64{20, 1}))
		broken.transport = reachable
		want := []int64{20, 1}
		want[unavailable] = bounds[unavailable].Cost
		if used := usedOf(t, pair, bounds); used[0] != want[0] || used[1] != want[1] ||
			statuses[unavailable].Failure != decision.Lost || statuses[1-unavailable].Failure != decision.NoFailure {
			t.Errorf("%v is used, want %v, and the statuses are %+v", used, want, statuses)
		}
	}
}

// failing is a transport that answers nothing.
type failing struct{ transport }

var errFailing = errors.New("it fails")

func (failing) Run(context.Context, *script, *call) error { return errFailing }

func TestOnlyTheBoundsOfTheRedisThatIsUnavailableHaveNoAnswer(t *testing.T) {
	one, other := named(0, false), named(0, true)
	bounds := []policy.Bound{hourly(t, one, 10, 1), hourly(t, other, 10, 1)}
	clients := twoServers(t)
	for unavailable := range bounds {
		pair := pairOn(t, clients)
		broken := []*Store{pair.main, pair.second}[unavailable]
		broken.transport = failing{broken.transport}
		statuses := make([]decision.Status, 2)
		require.NoError(t, pair.Take(t.Context(), bounds, statuses))
		if s := statuses[unavailable]; s.Source != decision.Unanswered || s.Failure == decision.NoFailure {
			t.Errorf("the one that is unavailable: %+v", s)
		}
		if s := statuses[1-unavailable]; s.Source != decision.Redis || !s.Charged || s.Used != 1 {
			t.Errorf("the other: %+v", s)
		}
		live, err := pair.Beat(t.Context(), "default", "node", time.Minute)
		if unavailable == 0 && err == nil || unavailable == 1 && (err != nil || live != 1) {
			t.Errorf("%d nodes, %v: the main Redis counts them, and the second need not answer", live, err)
		}
	}
}

func TestBothRedisOfAPairCountNodesAndEmptyBuckets(t *testing.T) {
	pair := pairOn(t, twoServers(t))
	one, other := named(0, false), named(0, true)
	bounds, statuses := []policy.Bound{hourly(t, one, 10, 3), hourly(t, other, 10, 4)}, make([]decision.Status, 2)
	require.NoError(t, pair.Take(t.Context(), bounds, statuses))
	if n, err := pair.Forget(t.Context(), policy.KeysOf(bounds)); n != 2 || err != nil {
		t.Errorf("%d buckets are emptied, %v: want 2", n, err)
	}
	if used := usedOf(t, pair, bounds); used[0] != 0 || used[1] != 0 {
		t.Errorf("%v is used of emptied buckets", used)
	}
	if live, err := pair.Beat(t.Context(), "default", "node", time.Minute); live != 1 || err != nil {
		t.Errorf("%d nodes, %v: want 1", live, err)
	}
	for _, store := range []*Store{pair.main, pair.second} {
		if live, err := store.Beat(t.Context(), "default", "other", time.Minute); live != 2 || err != nil {
			t.Errorf("%d nodes, %v: want the pair's node and another", live, err)
		}
	}
	require.NoError(t, pair.Leave(t.Context(), "default", "node"))
	for _, store := range []*Store{pair.main, pair.second} {
		if live, err := store.Beat(t.Context(), "default", "other", time.Minute); live != 1 || err != nil {
			t.Errorf("%d nodes, %v: want the pair's node gone", live, err)
		}
	}
}
