package bucket_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// A Redis of addressMemory has room for the buckets of mostAddresses, but not for those of addressCount.
var (
	addressCount  = soak.Count(20_000, 50_000)
	mostAddresses = addressCount / 10
	addressMemory = soak.Count(4, 7) // MB
)

// daily is a bound of a hundred thousand requests a day.
func daily(t *testing.T, key policy.Key, mode policy.FailMode) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100_000, Window: 86_400 * limit.Second})
	require.NoError(t, err)
	key.Namespace, key.Policy = "default", "daily"
	return policy.Bound{Policy: &policy.Policy{Name: "daily", Limit: l, FailMode: mode}, Key: key, Cost: 1}
}

// flood has each of many addresses send a request, and returns how many were admitted.
func flood(t *testing.T, view taker) (admitted int) {
	t.Helper()
	const clients = 16
	bound := daily(t, policy.Key{Group: policy.ByIP}, policy.FailOpen)
	counts := make([]int, clients)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			bounds, statuses := []policy.Bound{bound}, make([]decision.Status, 1)
			for i := c; i < addressCount; i += clients {
				bounds[0].Key.GroupID = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
				if err := view.Take(t.Context(), bounds, statuses); err != nil {
					t.Error(err)
					return
				}
				if !decision.Denies(&bounds[0], &statuses[0]) {
					counts[c]++
				}
			}
		})
	}
	all.Wait()
	for _, n := range counts {
		admitted += n
	}
	return admitted
}

func TestSoakAddressesThatFillRedisDenyNoTenant(t *testing.T) {
	server := redistest.Single(t, "--maxmemory", fmt.Sprint(addressMemory, "mb"), "--maxmemory-policy", "noeviction")
	of, view := onServer(t, server, func(o *bucket.Options) { o.MaxAddresses, o.NewAddresses = mostAddresses, -1 })
	if admitted := flood(t, view); admitted != addressCount {
		t.Errorf("%d of %d addresses are admitted by a limit that each is far below", admitted, addressCount)
	}
	for i := range 100 {
		key := policy.Key{Group: policy.ByTenant, GroupID: fmt.Sprint("tenant-", i)}
		bounds, statuses := []policy.Bound{daily(t, key, policy.FailClosed)}, make([]decision.Status, 1)
		require.NoError(t, view.Take(t.Context(), bounds, statuses))
		if statuses[0].Source != decision.Redis || !statuses[0].Admits() {
			t.Fatalf("tenant %d after the flood: %+v, want it admitted by Redis", i, statuses[0])
		}
	}
	keys, err := server.Client(t).DBSize(context.Background()).Result()
	require.NoError(t, err)
	if most := int64(mostAddresses + mostAddresses/10 + 64 + 100 + 1); keys > most {
		t.Errorf("%d keys in Redis, want %d at most", keys, most)
	}
	stats := of.Stats()[0].Addresses
	if int(stats.Apart+stats.Prefix+stats.Local) != addressCount || int(stats.Apart) < mostAddresses/2 ||
		stats.Kept > stats.Most {
		t.Errorf("%+v: want %d addresses in all, and %d of them with a bucket of their own",
			stats, addressCount, mostAddresses)
	}
}

// onServer returns stores whose clocks are real, and a view on the buckets that they keep in a Redis.
func onServer(t *testing.T, server *redistest.Server, edit ...func(*bucket.Options)) (*bucket.Stores, taker) {
	t.Helper()
	o := bucket.Options{
		Now:     func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) },
		Elapsed: func() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) },
		Budget:  time.Minute, Log: slog.New(slog.DiscardHandler), Nodes: 1,
	}
	for _, change := range edit {
		change(&o)
	}
	of := bucket.New(t.Context(), o)
	run(t, of)
	config := inRedis(server.Port)
	return of, opened(t, of, &config)
}

// logOf is a bound of an address, with a sliding log of so many requests in a window.
func logOf(t *testing.T, address string, quantity int64, window limit.Micros) policy.Bound {
	t.Helper()
	l, err := limit.New(limit.Spec{Algorithm: limit.SlidingLog, Quantity: quantity, Window: window})
	require.NoError(t, err)
	key := policy.Key{Namespace: "default", Policy: "log", Group: policy.ByIP, GroupID: address}
	return policy.Bound{Policy: &policy.Policy{Name: "log", Limit: l, FailMode: policy.FailOpen}, Key: key, Cost: 1}
}

// usedMemory returns how many bytes Redis uses.
func usedMemory(t *testing.T, client *redis.Client) int64 {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	used, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	require.NoError(t, err)
	return used
}

// fillLogs has each of some addresses send many requests, many at a time.
func fillLogs(t *testing.T, view taker, addresses, requests int) {
	t.Helper()
	var all sync.WaitGroup
	for a := range addresses {
		all.Go(func() {
			bounds := []policy.Bound{logOf(t, fmt.Sprintf("10.%d.0.1", a), 10_000, 60*limit.Second)}
			statuses := make([]decision.Status, 1)
			for range requests {
				if err := view.Take(t.Context(), bounds, statuses); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestAddressesWithSlidingLogsTakeNoMoreMemoryThanTheirBound(t *testing.T) {
	const (
		most      = 3100                 // 230 bytes of each are room for one log
		bound     = 1.1 * most * 2 * 230 // as docs/redis.md has it
		noise     = 1 << 20              // connections, scripts and Lua's garbage
		addresses = 250
		requests  = 1000
	)
	server := redistest.Single(t, "--maxmemory-policy", "noeviction")
	of, view := onServer(t, server, func(o *bucket.Options) { o.MaxAddresses, o.NewAddresses = most, -1 })
	fillLogs(t, view, 1, 1) // scripts are loaded
	client := server.Client(t)
	before := usedMemory(t, client)

	fillLogs(t, view, addresses, requests)

	if took := usedMemory(t, client) - before; took > bound+noise {
		t.Errorf("sliding logs of addresses took %d bytes of Redis, want at most %d", took, int64(bound)+noise)
	}
	var logs int64
	keys, err := client.Keys(t.Context(), "rl:default:{i=*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		bytes, err := client.MemoryUsage(t.Context(), key).Result()
		require.NoError(t, err)
		logs += bytes
	}
	if logs > bound || len(keys) < 2 {
		t.Errorf("%d keys of addresses have %d bytes, want at most %d, and one log at least", len(keys), logs, int64(bound))
	}
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", strconv.FormatInt(before+bound+noise, 10)).Err())
	bounds := []policy.Bound{daily(t, policy.Key{Group: policy.ByTenant, GroupID: "acme"}, policy.FailClosed)}
	statuses := make([]decision.Status, 1)
	err = view.Take(t.Context(), bounds, statuses)
	if err != nil || statuses[0].Source != decision.Redis || !statuses[0].Admits() {
		t.Errorf("a tenant after that: %+v, %v, want it admitted by Redis", statuses[0], err)
	}
	if stats := of.Stats()[0].Addresses; stats.LogBytes == 0 || stats.LogBytes > stats.MostLogBytes {
		t.Errorf("%+v: want bytes of a log, within the bound", stats)
	}
}

func TestAnAddressIsRememberedForAsLongAsRedisKeepsItsKey(t *testing.T) {
	server := redistest.Single(t)
	var ahead atomic.Int64
	of, view := onServer(t, server, func(o *bucket.Options) {
		o.Elapsed = func() limit.Micros { return limit.Micros(time.Since(started).Microseconds() + ahead.Load()) }
	})
	slow := logOf(t, "192.0.2.1", 1, 60*limit.Second)
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: 1, Window: 86_400 * limit.Second})
	require.NoError(t, err)
	slow.Policy = &policy.Policy{Name: "log", Limit: l, FailMode: policy.FailOpen}
	for _, bound := range []policy.Bound{slow, logOf(t, "192.0.2.2", 10_000, 60*limit.Second)} {
		require.NoError(t, view.Take(t.Context(), []policy.Bound{bound}, make([]decision.Status, 1)))
	}
	client := server.Client(t)
	for address, kept := range map[string]int{"192.0.2.1": 1, "192.0.2.2": 2} {
		lives, err := client.PTTL(t.Context(), "rl:default:{i="+address+"}").Result()
		require.True(t, err == nil && lives > 0, "%s: its key lives for %v, %v", address, lives, err)
		ahead.Store(lives.Microseconds())
		if got := of.Stats()[0].Addresses.Kept; got < kept {
			t.Errorf("after %v, the life of the key of %s, %d addresses are remembered, want %d", lives, address, got, kept)
		}
	}
}

func TestASlidingLogTakesNoMoreMemoryThanIsReservedForIt(t *testing.T) {
	server := redistest.Single(t)
	of, view := onServer(t, server)
	bounds, statuses := []policy.Bound{logOf(t, "192.0.2.1", 200, limit.Second)}, make([]decision.Status, 1)
	client := server.Client(t)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	var most int64
	for admitted := 0; admitted < 700; { // in the fourth window, when more than half of the entries have expired
		require.NoError(t, view.Take(t.Context(), bounds, statuses))
		if !statuses[0].Admits() {
			<-again.C
			continue
		}
		if admitted++; admitted%20 != 0 {
			continue
		}
		bytes, err := client.MemoryUsage(t.Context(), "rl:default:{i=192.0.2.1}:log:log").Result()
		require.NoError(t, err)
		most = max(most, bytes)
	}
	reserved := of.Stats()[0].Addresses.LogBytes
	if most > reserved || most < 200*14 {
		t.Errorf("the log takes up to %d bytes, want at most the %d that are reserved for it", most, reserved)
	}
}
