package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	loadRounds = 5
	loadTurn   = 400 * time.Millisecond // of each rival in each round
	loadWarmUp = 100 * time.Millisecond // opens connections and fills buckets
	// Every limit is a million tokens a second, and a minute's worth of them at once: nothing is denied.
	loadRate  = 1_000_000
	loadBurst = 60 * loadRate
	loadPool  = 64 // connections for each rival: no caller waits for one
)

var errDenied = errors.New("a request was denied: its limit is meant not to be reached")

// BenchmarkLoad measures what a decision costs on both sides, and how long it takes, under callers that each wait for
// one answer before they ask again. A request spends from four token buckets: a tenant's, its endpoint's, a user's and
// the global one.
//
// The rivals take turns in every round, on one server and over TCP, each with connections of its own; what is printed
// is the median of the rounds, and a ratio is the median of the rounds' ratios. Compare within one run. client-µs is
// all that this process computes, garbage collection and the loop with its one look at the clock included.
func BenchmarkLoad(b *testing.B) {
	server := redistest.Single(b)
	rivals, turns := loadRivals(b, server), loadRounds
	if testing.Short() {
		turns = 1
	}
	admin := server.Client(b)
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			for _, r := range rivals {
				pressFor(b, r, callers, loadWarmUp)
			}
			rounds := make(map[string][]cost)
			for b.Loop() {
				for round := range turns {
					for i := range rivals {
						r := rivals[(round+i)%len(rivals)]
						rounds[r.name] = append(rounds[r.name], measure(b, admin, r, callers))
					}
				}
			}
			b.Log(loadTable(rivals, rounds))
			b.ReportMetric(0, "ns/op") // of a whole comparison: means nothing
			cpu := func(c cost) float64 { return c.client + c.redis }
			b.ReportMetric(ratio(rounds, "four-gcra", cpu), "cpu/four-gcra")
			b.ReportMetric(ratio(rounds, "textbook", cpu), "cpu/textbook")
			b.ReportMetric(ratio(rounds, "apart", cpu), "cpu/apart")
			b.ReportMetric(ratio(rounds, "ping", func(c cost) float64 { return c.p99 }), "p99/ping")
			b.ReportMetric(ratio(rounds, "ping-alone", func(c cost) float64 { return c.p99 }), "p99/ping-alone")
		})
	}
}

// rival is one way to decide.
type rival struct {
	name string
	// caller makes what one caller does for request number n.
	caller func() func(n int) error
}

// loadRivals are the store as the plugin opens it, and what it is compared with. Those that would clash over a key have
// a database of their own.
func loadRivals(b *testing.B, server *redistest.Server) []rival {
	block := at(server, true)
	block.KeepalivePoolSize = loadPool
	c := checked(b, takeScript, block)
	ping := pingAsSent(b, c.backend.(single).client)
	block.Database = 4
	apart := checked(b, takeScript, block)
	apart.backend.(single).pipeline.apart.Store(true)
	return []rival{
		shippedRival(b, "shipped", c.store),
		shippedRival(b, "apart", apart.store), // one EVALSHA for each decision
		textbookRival(b, loadClient(b, server, 1)),
		gcraRival(b, loadClient(b, server, 2)),
		evalshaRival(b, loadClient(b, server, 3)),
		{"ping", func() func(int) error { return ping }},
		{"ping-alone", func() func(int) error {
			client := c.backend.(single).client
			return func(int) error { return client.Ping(context.Background()).Err() }
		}},
	}
}

func loadClient(b *testing.B, server *redistest.Server, database int) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr: server.Address(), DB: database, Protocol: 2,
		PoolSize: loadPool, MaxRetries: -1,
	})
	b.Cleanup(func() {
		if err := client.Close(); err != nil {
			b.Errorf("close a rival's client: %v", err)
		}
	})
	return client
}

// shippedRival takes four bounds, and looks whether each admits.
func shippedRival(b *testing.B, name string, store *Store) rival {
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: loadBurst, Window: 60 * limit.Second})
	require.NoError(b, err)
	p := &policy.Policy{Limit: l}
	requests := make([][]policy.Bound, benchTenants*benchUsers)
	for n := range requests {
		for _, key := range benchGlobal(n) {
			requests[n] = append(requests[n], policy.Bound{Policy: p, Key: key, Cost: 1})
		}
	}
	return rival{name, func() func(int) error {
		statuses := make([]decision.Status, len(requests[0]))
		return func(n int) error {
			if err := store.Take(context.Background(), requests[n%len(requests)], statuses); err != nil {
				return err
			}
			for i := range statuses {
				if !statuses[i].Admits() {
					return errDenied
				}
			}
			return nil
		}
	}}
}

// evalshaRival runs the script that the store runs, through go-redis's pipeline, and reads nothing of the reply.
func evalshaRival(b *testing.B, client *redis.Client) rival {
	pipe, err := client.AutoPipeline()
	require.NoError(b, err)
	must(b, client, "script", "load", takeScript.source)
	l, err := limit.New(limit.Spec{Algorithm: limit.TokenBucket, Quantity: loadBurst, Window: 60 * limit.Second})
	require.NoError(b, err)
	plans := make([]scriptCall, benchTenants*benchUsers)
	for n := range plans {
		var bounds []policy.Bound
		for _, key := range benchGlobal(n) {
			bounds = append(bounds, policy.Bound{Policy: &policy.Policy{Limit: l}, Key: key, Cost: 1})
		}
		require.NoError(b, plans[n].compile(bounds))
	}
	return rival{"evalsha", func() func(int) error {
		return func(n int) error {
			p := &plans[n%len(plans)]
			return pipe.EvalSha(context.Background(), takeScript.sha, p.call.keys, p.request).Err()
		}
	}}
}

// loadKeys are the keys of requests, as a library's user would write them.
func loadKeys() [][]string {
	requests := make([][]string, benchTenants*benchUsers)
	for n := range requests {
		requests[n] = append(benchKeys(n)[:3], "rl:default:{g}:everything")
	}
	return requests
}

// textbookRival asks one script for all four buckets.
func textbookRival(b *testing.B, client *redis.Client) rival {
	book, requests := benchScript(b, "textbook"), loadKeys()
	must(b, client, "script", "load", book.source)
	args := slices.Repeat([]any{strconv.Itoa(loadRate), strconv.Itoa(loadBurst), "1"}, 4)
	decide := func(n int) error {
		reply, err := client.EvalSha(context.Background(), book.sha, requests[n%len(requests)], args...).Int64Slice()
		if err == nil && reply[0] != 1 {
			err = errDenied
		}
		return err
	}
	return rival{"textbook", func() func(int) error { return decide }}
}

// gcraRival calls four times, once for each bucket, with the arguments of go-redis/redis_rate v10 and its reply read as
// it reads it. Unlike the others it is not atomic.
func gcraRival(b *testing.B, client *redis.Client) rival {
	gcra, requests := benchScript(b, "gcra"), loadKeys()
	must(b, client, "script", "load", gcra.source)
	allow := func(key string) error {
		period := time.Minute
		reply, err := client.EvalSha(context.Background(), gcra.sha, []string{"rate:" + key},
			loadBurst, loadBurst, period.Seconds(), 1).Slice()
		if err != nil {
			return err
		}
		for _, seconds := range reply[2:] {
			if _, err := strconv.ParseFloat(seconds.(string), 64); err != nil {
				return err
			}
		}
		if reply[0].(int64) == 0 {
			return errDenied
		}
		return nil
	}
	decide := func(n int) error {
		for _, key := range requests[n%len(requests)] {
			if err := allow(key); err != nil {
				return err
			}
		}
		return nil
	}
	return rival{"four-gcra", func() func(int) error { return decide }}
}

// pingAsSent sends PING through the pipeline of go-redis, or over a connection of its own where few callers are.
func pingAsSent(b *testing.B, client *redis.Client) func(n int) error {
	ctx := context.Background()
	pipe, err := client.AsyncAutoPipeline()
	require.NoError(b, err)
	var callers atomic.Int64
	return func(int) error {
		defer callers.Add(-1)
		if callers.Add(1) <= directCallers {
			return client.Ping(ctx).Err()
		}
		return pipe.Submit(ctx, redis.NewStatusCmd(ctx, "ping")).WaitContext(ctx)
	}
}

// cost is what a rival's decision costs on average, and how long it takes.
type cost struct {
	perSecond     float64
	client, redis float64 // µs of CPU
	commands      float64 // that the client sends
	calls         float64 // that Redis executes, those of scripts included
	in, out       float64 // bytes, as Redis counts them
	allocations   float64 // of this process
	p50, p99      float64 // µs
}

// measure gives the rival its turn.
func measure(b *testing.B, admin *redis.Client, r rival, callers int) cost {
	b.Helper()
	runtime.GC() // no rival pays for another's garbage
	must(b, admin, "config", "resetstat")
	redisBefore, ownBefore := usedCPU(b, admin), ownCPU(b)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	took, waits := pressFor(b, r, callers, loadTurn)
	runtime.ReadMemStats(&after)
	own, redisUsed := ownCPU(b)-ownBefore, usedCPU(b, admin)-redisBefore
	n := float64(len(waits))
	c := cost{
		perSecond: n / took.Seconds(),
		client:    own.Seconds() * 1e6 / n,
		redis:     redisUsed * 1e6 / n,

		allocations: float64(after.Mallocs-before.Mallocs) / n,
	}
	executed := calls(b, admin)
	c.commands = float64(executed["evalsha"]+executed["ping"]) / n
	for _, times := range executed {
		c.calls += float64(times) / n
	}
	text, err := admin.Info(context.Background(), "stats").Result()
	require.NoError(b, err)
	stats := parseInfo(text)
	c.in, c.out = number(b, stats["total_net_input_bytes"])/n, number(b, stats["total_net_output_bytes"])/n
	slices.Sort(waits)
	c.p50, c.p99 = micros(waits[len(waits)/2]), micros(waits[len(waits)*99/100])
	return c
}

// pressFor lets callers decide for some time, and answers how long it was and how long each decision took.
func pressFor(b *testing.B, r rival, callers int, turn time.Duration) (took time.Duration, waits []time.Duration) {
	b.Helper()
	decide, each := make([]func(int) error, callers), make([][]time.Duration, callers)
	for i := range callers {
		decide[i], each[i] = r.caller(), make([]time.Duration, 0, 1<<16/callers)
	}
	var started atomic.Int64
	start := time.Now()
	err := atOnce(callers, 1, func() error {
		me := int(started.Add(1)) - 1
		for n, before := me, time.Now(); before.Sub(start) < turn; n += callers {
			if err := decide[me](n); err != nil {
				return err
			}
			now := time.Now()
			each[me] = append(each[me], now.Sub(before))
			before = now
		}
		return nil
	})
	took = time.Since(start)
	if err != nil {
		b.Fatalf("%s, %d callers: %v", r.name, callers, err)
	}
	return took, slices.Concat(each...)
}

// ownCPU is how long this process has computed, in user and kernel mode.
func ownCPU(b *testing.B) time.Duration {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func number(b *testing.B, text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		b.Fatalf("a number of INFO: %v", err)
	}
	return n
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ratio is that of the shipped store to another, of something that it costs.
func ratio(rounds map[string][]cost, other string, of func(cost) float64) float64 {
	var ratios []float64
	for i, c := range rounds["shipped"] {
		ratios = append(ratios, of(c)/of(rounds[other][i]))
	}
	return median(ratios)
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func loadTable(rivals []rival, rounds map[string][]cost) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nper decision\tdecisions/s\tclient-µs\tallocations\tredis-µs\tcommands\tcalls\tbytes-in\tbytes-out\tp50-µs\tp99-µs\t")
	for _, r := range rivals {
		of := func(column func(cost) float64) float64 {
			var values []float64
			for _, c := range rounds[r.name] {
				values = append(values, column(c))
			}
			return median(values)
		}
		fmt.Fprintf(table, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", r.name,
			of(func(c cost) float64 { return c.perSecond }), of(func(c cost) float64 { return c.client }),
			of(func(c cost) float64 { return c.allocations }),
			of(func(c cost) float64 { return c.redis }), of(func(c cost) float64 { return c.commands }),
			of(func(c cost) float64 { return c.calls }), of(func(c cost) float64 { return c.in }),
			of(func(c cost) float64 { return c.out }), of(func(c cost) float64 { return c.p50 }),
			of(func(c cost) float64 { return c.p99 }))
	}
	_ = table.Flush() // into memory
	return text.String()
}
