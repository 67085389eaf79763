package redis

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

// command queues one decision of four scopes, number n.
type command func(pipeline redis.Pipeliner, n int)

const (
	benchTenants = 50
	benchUsers   = 20 // of each tenant
	benchBatch   = 100
)

// BenchmarkRedisCPU measures what a decision of four scopes costs Redis, pipelined, beside what others send. All that
// is measured here runs on one server, one after the other: compare within one run. Every request is admitted.
func BenchmarkRedisCPU(b *testing.B) {
	client := redistest.Single(b).Client(b)
	textbook, gcra := benchScript(b, "textbook"), benchScript(b, "gcra")
	for _, c := range []struct {
		name string
		send command
	}{
		{"ping", func(p redis.Pipeliner, _ int) { p.Ping(context.Background()) }},
		{"shipped", shipped(b, limit.TokenBucket, benchScopes)},
		{"shipped-with-global", shipped(b, limit.TokenBucket, benchGlobal)},
		{"shipped-tenant-only", shipped(b, limit.TokenBucket, benchTenant)},
		{"shipped-15-endpoints", shipped(b, limit.TokenBucket, benchEndpoints(67))}, // 32 buckets, the most in one string
		{"shipped-20-endpoints", shipped(b, limit.TokenBucket, benchEndpoints(50))},
		{"shipped-100-endpoints", shipped(b, limit.TokenBucket, benchEndpoints(10))},
		{"shipped-1000-endpoints", shipped(b, limit.TokenBucket, benchEndpoints(1))},
		{"shipped-fixed-window", shipped(b, limit.FixedWindow, benchScopes)},
		{"shipped-calendar-window", shipped(b, limit.CalendarWindow, benchScopes)},
		{"shipped-sliding-window", shipped(b, limit.SlidingWindow, benchScopes)},
		{"shipped-sliding-log", shipped(b, limit.SlidingLog, benchScopes)},
		{"textbook", func(p redis.Pipeliner, n int) {
			args := slices.Repeat([]any{"1000000.5", "1000000000", "1"}, 4)
			p.EvalSha(context.Background(), textbook.sha, benchKeys(n), args...)
		}},
		{"four-gcra", func(p redis.Pipeliner, n int) {
			for _, key := range benchKeys(n) {
				p.EvalSha(context.Background(), gcra.sha, []string{key}, 1_000_000_000, 1_000_000_000, 60, 1)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			flush(b, client)
			benchLevels.forget()
			for _, s := range []*script{takeScript, textbook, gcra} {
				require.NoError(b, client.ScriptLoad(context.Background(), s.source).Err())
			}
			sendAll(b, client, c.send, benchTenants*benchUsers) // the buckets exist
			// On a busy machine, buckets may have expired before they could be split.
			for range 3 {
				if strings.HasPrefix(c.name, "shipped") {
					benchLevels.splitAll(b, client)
					sendAll(b, client, c.send, benchTenants*benchUsers) // those that were split, too
				}
			}
			before := usedCPU(b, client)
			b.ResetTimer()
			n := sendAll(b, client, c.send, b.N)
			b.StopTimer()
			b.ReportMetric((usedCPU(b, client)-before)*1e6/float64(n), "redis-µs/op")
		})
	}
}

func benchScript(b *testing.B, name string) *script {
	source, err := os.ReadFile("testdata/bench/" + name + ".lua")
	require.NoError(b, err)
	return newScript(string(source))
}

func benchKeys(n int) []string {
	tenant, user := n%benchTenants, n/benchTenants%benchUsers
	tag := fmt.Sprintf("rl:default:{t=tenant-%d}:", tenant)
	return []string{
		tag + "daily", tag + "writes:POST%20/records",
		fmt.Sprint(tag, "burst:u_", user), fmt.Sprint(tag, "heavy:u_", user, ":POST%20/records"),
	}
}

// shipped sends what Take sends.
func shipped(b *testing.B, algorithm limit.Algorithm, scopes func(n int) []policy.Key) command {
	spec := limit.Spec{Algorithm: algorithm, Quantity: 1_000_000_000, Window: 60 * limit.Second}
	if algorithm == limit.CalendarWindow {
		month, err := calendar.New(calendar.Month, calendar.Anchor{}, "Europe/Berlin")
		require.NoError(b, err)
		spec = limit.Spec{Algorithm: limit.FixedWindow, Quantity: spec.Quantity, Calendar: month}
	}
	if algorithm == limit.SlidingLog {
		spec.Quantity = limit.MaxLogQuantity
		spec.Window = limit.Second
		spec.SoftOnly = true // it never denies, and forgets
	}
	l, err := limit.New(spec)
	require.NoError(b, err)
	p := &policy.Policy{Limit: l}
	var plans []*scriptCall
	for n := range benchTenants * benchUsers {
		var bounds []policy.Bound
		for _, key := range scopes(n) {
			bounds = append(bounds, policy.Bound{Policy: p, Key: key, Cost: 1})
		}
		plans = append(plans, &scriptCall{levels: &benchLevels.levels, clock: wallClock, bounds: bounds})
	}
	compiled := -1
	return func(pipeline redis.Pipeliner, n int) {
		p := plans[n%len(plans)]
		if compiled != benchLevels.changes {
			for _, p := range plans {
				require.NoError(b, p.compile(p.bounds))
			}
			compiled = benchLevels.changes
		}
		pipeline.EvalSha(context.Background(), takeScript.sha, p.call.keys, p.request)
	}
}

// levelled is what a store knows of the subjects that it has split.
type levelled struct {
	levels  levels
	changes int
}

var benchLevels levelled

// forget takes all subjects for whole ones again.
func (l *levelled) forget() {
	for tenant := range benchTenants {
		l.levels.learn(benchSubject(tenant), 0)
	}
	l.changes++
}

func benchSubject(tenant int) *policy.Key {
	return &policy.Key{Namespace: "default", Group: policy.ByTenant, GroupID: fmt.Sprint("tenant-", tenant)}
}

// splitAll splits what holds too many buckets, as a store does when a reply reports it.
func (l *levelled) splitAll(b *testing.B, client *redis.Client) {
	s := newStore("bench", &direct{client, false}, takeScript, slog.New(slog.DiscardHandler))
	for tenant := range benchTenants {
		key := benchSubject(tenant)
		s.levels.learn(key, l.levels.level(key))
		for level := l.levels.level(key); isFullAt(b, client, key, level); level++ {
			require.NoError(b, s.split(context.Background(), key, level))
		}
		l.levels.learn(key, s.levels.level(key))
	}
	l.changes++
}

// isFullAt reports whether a subject of a level has a string with more than 32 buckets.
func isFullAt(b *testing.B, client *redis.Client, key *policy.Key, level int) bool {
	keys := []string{string(appendSubject(nil, key))}
	for chunk := 0; level > 0 && chunk < 1<<level; chunk++ {
		keys = append(keys, string(appendChunk(nil, key, chunk)))
	}
	for _, key := range keys {
		length, err := client.StrLen(context.Background(), key).Result()
		require.NoError(b, err)
		if length > headSize+32*entrySize {
			return true
		}
	}
	return false
}

func benchScopes(n int) []policy.Key {
	tenant, user := fmt.Sprint("tenant-", n%benchTenants), fmt.Sprint("u_", n/benchTenants%benchUsers)
	return []policy.Key{
		{Namespace: "default", Policy: "daily", Group: policy.ByTenant, GroupID: tenant},
		{Namespace: "default", Policy: "writes", Group: policy.ByTenant, GroupID: tenant, Endpoint: "POST /records"},
		{Namespace: "default", Policy: "burst", Group: policy.ByTenant, GroupID: tenant, Kind: policy.KindUser, Subject: user},
		{Namespace: "default", Policy: "heavy", Group: policy.ByTenant, GroupID: tenant, Kind: policy.KindUser, Subject: user, Endpoint: "POST /records"},
	}
}

func benchGlobal(n int) []policy.Key {
	keys := benchScopes(n)
	keys[3] = policy.Key{Namespace: "default", Policy: "everything", Group: policy.ByAll}
	return keys
}

func benchTenant(n int) []policy.Key {
	keys := benchScopes(n)[:2]
	for i := range 2 {
		key := keys[i]
		key.Policy += "-2"
		keys = append(keys, key)
	}
	return keys
}

// benchEndpoints is one of so many tenants, which have the endpoints of the bench's users.
func benchEndpoints(tenants int) func(n int) []policy.Key {
	return func(n int) []policy.Key {
		keys := benchTenant(n)
		for i := range keys {
			keys[i].GroupID = fmt.Sprint("tenant-", n%tenants)
			if keys[i].Endpoint != "" {
				keys[i].Endpoint = fmt.Sprint("GET /", n/tenants)
			}
		}
		return keys
	}
}

// sendAll sends at least n decisions, and returns how many.
func sendAll(b *testing.B, client *redis.Client, send command, n int) int {
	sent := 0
	for sent < n {
		pipeline := client.Pipeline()
		for range benchBatch {
			send(pipeline, sent)
			sent++
		}
		replies, err := pipeline.Exec(context.Background())
		require.NoError(b, err)
		for _, reply := range replies {
			if script, ok := reply.(*redis.Cmd); ok && hasLevelsOnly(script.Val()) {
				b.Fatalf("the script has decided nothing, only reported levels: %v", script.Val())
			}
		}
	}
	return sent
}

// hasLevelsOnly reports whether the reply to a command of one request has only the levels of its subjects.
func hasLevelsOnly(reply any) bool {
	requests, ok := reply.([]any)
	if !ok || len(requests) != 1 {
		return false
	}
	levels, ok := requests[0].([]any)
	return ok && len(levels) == 1
}

// usedCPU is how many seconds Redis has computed.
func usedCPU(b *testing.B, client *redis.Client) float64 {
	info, err := client.Info(context.Background(), "cpu").Result()
	require.NoError(b, err)
	var sum float64
	for line := range strings.Lines(info) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(text, 64)
			require.NoError(b, err)
			sum += seconds
		}
	}
	return sum
}
