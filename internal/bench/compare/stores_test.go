package compare

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/lease"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	redisstore "github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/redis"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// server is a Redis and our store in it.
type server struct {
	store *redisstore.Store
	admin *redis.Client
}

// openRedis starts a Redis and connects over TCP on the loopback. The timeouts are long, because a benchmark measures
// every answer.
func openRedis(tb testing.TB) *server {
	tb.Helper()
	started := redistest.Single(tb)
	const patience = 5000 // ms
	block := schema.Redis{
		Host: started.Host, Port: int64(started.Port), Pipeline: true,
		ConnectTimeout: patience, ReadTimeout: patience, SendTimeout: patience,
	}
	store, release, err := redisstore.NewRegistry(slog.New(slog.DiscardHandler), nil).Open(block)
	require.NoError(tb, err)
	tb.Cleanup(release)
	return &server{store: store, admin: started.Client(tb)}
}

// empty deletes all buckets.
func (s *server) empty(tb testing.TB) {
	tb.Helper()
	if err := s.admin.FlushAll(context.Background()).Err(); err != nil {
		tb.Fatalf("empty Redis: %v", err)
	}
}

// calls returns the number of requests that Redis has decided. Each reads its buckets by one MGET, while one EVALSHA
// may have several requests.
func (s *server) calls(tb testing.TB) uint64 {
	tb.Helper()
	text, err := s.admin.Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Fatalf("read the commands of Redis: %v", err)
	}
	_, counts, ok := strings.Cut(text, "cmdstat_mget:calls=")
	if !ok {
		return 0 // none yet
	}
	count, _, _ := strings.Cut(counts, ",")
	n, err := strconv.ParseUint(count, 10, 64)
	if err != nil {
		tb.Fatalf("read the commands of Redis: %v", err)
	}
	return n
}

// counted is a store of this process that replaces the shared one, to measure leases without a network. It drops
// refunds, because its buckets have plenty.
type counted struct {
	*memory.Store
	taken atomic.Uint64
}

// Take implements store.Store.
func (c *counted) Take(ctx context.Context, bounds []policy.Bound, statuses []decision.Status) error {
	c.taken.Add(1)
	return c.Store.Take(ctx, bounds, statuses)
}

// Settle implements store.Store.
func (c *counted) Settle(context.Context, []policy.Bound, []decision.Status, []int64) error {
	c.taken.Add(1)
	return nil
}

// monotonic returns a clock that never steps.
func monotonic() func() limit.Micros {
	start := time.Now()
	return func() limit.Micros { return limit.Micros(time.Since(start).Microseconds()) }
}

// leasing returns the buckets of the only node that leases from shared. It runs until the end of tb.
func leasing(tb testing.TB, shared store.Store) admit.Buckets {
	tb.Helper()
	leases := lease.New(shared, lease.Options{Now: monotonic(), Nodes: func(string) int { return 1 }})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := leases.Run(ctx); err != nil {
			tb.Errorf("run the leases: %v", err)
		}
	})
	tb.Cleanup(func() { cancel(); running.Wait() })
	return leases.Store(shared)
}

// inMemory returns a store of this process with room for every bucket of every job.
func inMemory() *memory.Store {
	return memory.New(memory.Options{Now: monotonic(), MaxBuckets: 2_000_000})
}

func newMemory(testing.TB, *job) (admit.Buckets, func(testing.TB) uint64) { return inMemory(), nil }

func newRedis(tb testing.TB, j *job) (admit.Buckets, func(testing.TB) uint64) {
	j.redis.empty(tb)
	return j.redis.store, j.redis.calls
}

func newLease(tb testing.TB, j *job) (admit.Buckets, func(testing.TB) uint64) {
	j.redis.empty(tb)
	return leasing(tb, j.redis.store), j.redis.calls
}

func newLeaseOverMemory(tb testing.TB, _ *job) (admit.Buckets, func(testing.TB) uint64) {
	shared := &counted{Store: inMemory()}
	return leasing(tb, shared), func(testing.TB) uint64 { return shared.taken.Load() }
}

// ours makes a limiter of a store. It takes all bounds of a request in one call, all or none, and reports the remaining
// tokens and the reset of each.
func ours(open func(testing.TB, *job) (admit.Buckets, func(testing.TB) uint64)) func(testing.TB, *job) limiter {
	return func(tb testing.TB, j *job) limiter {
		buckets, calls := open(tb, j)
		return limiter{calls: calls, caller: func() decide {
			bounds, statuses := slices.Clone(j.bounds), make([]decision.Status, len(j.bounds))
			return func(tenant int) (bool, error) {
				for i := range bounds {
					bounds[i].Key.GroupID = j.groupOf(i, tenant)
				}
				return take(buckets, bounds, statuses)
			}
		}}
	}
}

// take spends bounds, and reports whether all admit. A bound without an answer is an error.
func take(buckets admit.Buckets, bounds []policy.Bound, statuses []decision.Status) (bool, error) {
	if err := buckets.Take(context.Background(), bounds, statuses); err != nil {
		return false, err
	}
	admitted := true
	for i := range statuses {
		if s := &statuses[i]; s.Failure != decision.NoFailure {
			return false, unanswered{s.Failure}
		}
		admitted = admitted && statuses[i].Admits()
	}
	return admitted, nil
}

// unanswered is the error of a store that did not answer.
type unanswered struct{ decision.Failure }

func (u unanswered) Error() string { return u.String() }
