package reservation_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/await"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/reservation"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/store"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/settle"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// These tests have two processes on a real Redis, each with the stores and the table that a plugin process has.

// process is what a plugin process keeps of reservations.
type process struct {
	t      *testing.T
	store  store.Store
	table  *reservation.Ledger
	keeper *reservation.Keeper

	mu       sync.Mutex
	outcomes map[reservation.Outcome]int
	reserved int
}

var started = time.Now()

// newProcess returns a process with the Redis of a config open, until the end of the test.
func newProcess(t *testing.T, config schema.Config) *process {
	t.Helper()
	elapsed := func() limit.Micros { return limit.Micros(time.Since(started).Microseconds()) }
	now := func() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }
	stores := bucket.New(t.Context(), bucket.Options{
		Now: now, Elapsed: elapsed, Budget: time.Minute, Log: slog.New(slog.DiscardHandler), Nodes: 1, LeaseShare: 2,
	})
	p := &process{t: t, outcomes: map[reservation.Outcome]int{}}
	p.table = reservation.New(reservation.Options{Elapsed: elapsed, Now: now, Observer: p})
	serve(t, stores.Run)
	serve(t, p.table.Run)

	view, release, err := stores.Open(&config)
	require.NoError(t, err)
	records, releaseRecords, err := stores.OpenRecords(&config)
	require.NoError(t, err)
	p.store = view
	p.keeper = p.table.Keeper(view, records[0], func() {
		releaseRecords()
		release()
	})
	return p
}

// serve runs a service until the end of the test.
func serve(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
}

func inRedis(server *redistest.Server) schema.Config {
	return schema.Config{Strategy: schema.StrategyRedis, Redis: schema.Redis{
		Host: "127.0.0.1", Port: int64(server.Port), ConnectTimeout: 60_000, SendTimeout: 60_000, ReadTimeout: 60_000,
	}}.WithDefaults()
}

func (p *process) Reserved(*policy.Bound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved++
}

func (p *process) Settled(_ *policy.Bound, s reservation.Settlement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outcomes[s.Outcome]++
}

const year = 366 * 86_400 * limit.Second

// budget is a limit of a million tokens in a window, which tenant acme has.
func budget(t *testing.T, window limit.Micros, reserve int64) policy.Bound {
	t.Helper()
	rule, err := settle.New(schema.Settle{
		Sources: []schema.SettleSource{{From: "shared.tokens"}}, Reserve: reserve, Timeout: 600,
	}, nil)
	require.NoError(t, err)
	l, err := limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1_000_000, Window: window})
	require.NoError(t, err)
	return policy.Bound{
		Policy: &policy.Policy{Name: "budget", Scope: policy.Tenant, Limit: l, Settle: rule}, Cost: reserve,
		Key: policy.Key{Namespace: "default", Policy: "budget", Group: policy.ByTenant, GroupID: "acme"},
	}
}

// reserve admits a request.
func (p *process) reserve(b policy.Bound) string {
	p.t.Helper()
	var d decision.Decision
	d.Reset()
	d.Resolution.Bounds = append(d.Resolution.Bounds, b)
	d.Grow()
	require.NoError(p.t, p.store.Take(p.t.Context(), d.Resolution.Bounds, d.Statuses))
	if d.Combine(); d.Denied() || d.Statuses[0].Source != decision.Redis {
		p.t.Fatalf("not admitted by Redis: %+v", d.Statuses)
	}
	return p.keeper.Keep(&d)
}

// end is the end of a request that used some tokens.
type end int64

func (e end) Read(_ context.Context, _ settle.Needs, a *settle.Answer) error {
	*a = settle.Answer{
		Status: 200, Source: settle.SourceService, Tried: true,
		Shared: map[string]string{"tokens": fmt.Sprint(int64(e))},
	}
	return nil
}

func (p *process) settle(token string, used int64) {
	assert.NoError(p.t, p.table.Settle(p.t.Context(), token, end(used)))
}

// used returns what the bucket counts as spent.
func (p *process) used(b policy.Bound) int64 {
	p.t.Helper()
	statuses := make([]decision.Status, 1)
	require.NoError(p.t, p.store.Peek(p.t.Context(), []policy.Bound{b}, statuses))
	return statuses[0].Used
}

// settledIn waits until processes have settled n bounds together, and returns their outcomes.
func settledIn(t *testing.T, n int, all ...*process) map[reservation.Outcome]int {
	t.Helper()
	var outcomes map[reservation.Outcome]int
	await.That(t, fmt.Sprintf("%d bounds are settled", n), func() bool {
		sum, waiting := 0, 0
		outcomes = map[reservation.Outcome]int{}
		for _, p := range all {
			p.mu.Lock()
			for outcome, count := range p.outcomes {
				outcomes[outcome] += count
				sum += count
			}
			p.mu.Unlock()
			waiting += p.table.Stats().Parked
		}
		return sum >= n && waiting == 0
	})
	return outcomes
}

func TestEachLogEventThatReachesTwoProcessesSettlesOnce(t *testing.T) {
	config := inRedis(redistest.Single(t))
	first, second := newProcess(t, config), newProcess(t, config)
	const requests, reserved = 200, 100
	b := budget(t, year, reserved)
	var sum int64
	var events sync.WaitGroup
	for i := range requests {
		token, used := first.reserve(b), int64(i%250)
		sum += used
		processes := []*process{first, second}
		if i%2 == 0 {
			processes[0], processes[1] = second, first
		}
		events.Go(func() { processes[0].settle(token, used) })
		events.Go(func() { processes[1].settle(token, used) })
	}
	events.Wait()
	outcomes := settledIn(t, requests, first, second)
	if outcomes[reservation.Measured] != requests || len(outcomes) != 1 {
		t.Errorf("the outcomes are %v, want %d measured", outcomes, requests)
	}
	assert.Equal(t, sum, first.used(b), "tokens are charged")
	if first.reserved != requests || second.reserved != 0 || len(second.outcomes) == 0 || len(first.outcomes) == 0 {
		t.Errorf("the first reserved %d and settled %v, the second reserved %d and settled %v",
			first.reserved, first.outcomes, second.reserved, second.outcomes)
	}
}

func TestAProcessWithAnotherLimitReturnsNothingAndChargesNothing(t *testing.T) {
	config := inRedis(redistest.Single(t))
	first, second := newProcess(t, config), newProcess(t, config)
	before, after := budget(t, year, 100), budget(t, year/2, 100)
	less, more := first.reserve(before), first.reserve(before)
	second.reserve(after) // the bucket now belongs to the new limit
	charged := second.used(after)
	second.settle(less, 10)
	second.settle(more, 300)
	outcomes := settledIn(t, 2, second)
	if used := second.used(after); used != charged || outcomes[reservation.Lost] == 0 {
		t.Errorf("%d tokens are charged after %d, with the outcomes %v", used, charged, outcomes)
	}
}

// calls returns how many scripts a Redis has run since the last call.
func calls(t *testing.T, server *redistest.Server) int {
	t.Helper()
	client := server.Client(t)
	_, stats, _ := strings.Cut(client.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	number, _, _ := strings.Cut(stats, ",")
	n, err := strconv.Atoi(number)
	require.NoError(t, err, "EVALSHA was called %q times", number)
	return n
}

// recordsIn returns the keys of the records in a Redis that are claimed, or that are not.
func recordsIn(t *testing.T, server *redistest.Server, claimed bool) (keys []string) {
	t.Helper()
	client := server.Client(t)
	all, err := client.Keys(t.Context(), "rl:default:{r=*}").Result()
	require.NoError(t, err)
	for _, key := range all {
		record := client.Get(t.Context(), key).Val() // "": it has expired meanwhile
		if record != "" && strings.HasPrefix(record, "\x00") == claimed {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestAReservationCostsRedisARecordAndAClaimBesideTheTakeAndTheSettlement(t *testing.T) {
	server := redistest.Single(t)
	p := newProcess(t, inRedis(server))
	b := budget(t, year, 100)
	p.settle(p.reserve(b), 30) // loads the scripts
	calls(t, server)

	var tokens []string
	const requests = 50
	for range requests {
		tokens = append(tokens, p.reserve(b))
	}
	client := server.Client(t)
	await.That(t, "all are recorded", func() bool { return len(recordsIn(t, server, false)) == requests })
	key := recordsIn(t, server, false)[0]
	size := client.MemoryUsage(t.Context(), key).Val()
	assert.True(t, size != 0 && size <= 1024, "a record takes %d bytes of Redis, docs/redis.md has about 1 kB", size)
	if ttl := client.PTTL(t.Context(), key).Val(); ttl < 10*time.Minute || ttl > 20*time.Minute {
		t.Errorf("a record of a limit with a timeout of ten minutes is kept for %v", ttl)
	}
	// The node has calls of its own, such as its heartbeat: a few while this test runs.
	if n := calls(t, server); n < 2*requests || n > 2*requests+requests/2 {
		t.Errorf("%d requests are %d calls, want one to take and one to record each", requests, n)
	}
	for _, token := range tokens {
		p.settle(token, 30)
	}
	if n := calls(t, server); n < 2*requests || n > 2*requests+requests/2 {
		t.Errorf("%d log phases are %d calls, want one to claim and one to settle each", requests, n)
	}
	left := recordsIn(t, server, false)
	assert.True(t, len(left) == 0, "the records %q are left", left)
	for _, key := range recordsIn(t, server, true) {
		if ttl := client.PTTL(t.Context(), key).Val(); ttl > 30*time.Second {
			t.Errorf("%s is kept for %v after its request was settled", key, ttl)
		}
	}
}
