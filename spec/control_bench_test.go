//go:build linux

package spec

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// spent is the processor time of an event in microseconds, in the plugin's process and in Redis.
type spent struct{ plugin, redis float64 }

// costsOf measures what events of subjects cost at a rate. They take turns; each cost is a median.
func costsOf(b *testing.B, client *redis.Client, rate float64, subjects ...*subject) []spent {
	b.Helper()
	const turns = 5
	plugin, inRedis := make([][]float64, len(subjects)), make([][]float64, len(subjects))
	for range turns {
		for i, u := range subjects {
			before := redisTime(b, client)
			t := offered(b, u, rate)
			plugin[i] = append(plugin[i], t.cpu)
			events := float64(len(t.took)) * float64(latencyTurn+leadIn) / float64(latencyTurn)
			inRedis[i] = append(inRedis[i], (redisTime(b, client)-before)/events)
		}
	}
	costs := make([]spent, len(subjects))
	for i := range subjects {
		costs[i] = spent{median(plugin[i]), median(inRedis[i])}
	}
	return costs
}

// redisTime returns the processor time of Redis since its start, in microseconds.
func redisTime(b *testing.B, client *redis.Client) float64 {
	b.Helper()
	fields, total := info(b, client, "cpu"), 0.0
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(fields[name], 64)
		if err != nil {
			b.Fatalf("info cpu: %s: %v", name, err)
		}
		total += seconds
	}
	return total * 1e6
}

// newControl starts the control of a subject: a plugin without limits, state or background work whose events cost the
// same processor time, ask the same question and set the same headers. The control of a subject that calls Redis for
// each event calls it too, with a script of the same cost. So what a request waits for it is due to the cost alone: the
// queues for the plugin's one thread, for Redis and for the cores of the machine.
func newControl(b *testing.B, client *redis.Client, u *subject, rate float64) *subject {
	b.Helper()
	const probe, redisProbe = 20_000, 1000 // rounds
	var args []string
	if u.name == "redis-exact" {
		args = []string{"-redis", client.Options().Addr}
	}
	start := func(rounds, redisRounds float64) *subject {
		args := append(slices.Clone(args), "-work", strconv.Itoa(int(rounds)), "-redis-work", strconv.Itoa(int(redisRounds)))
		c := newSubject(b, "control", serve(b, "noop", args...), fourScopes(1, ""), true, "acme")
		c.connect(b, latencyConnections)
		return c
	}
	costs := costsOf(b, client, rate, u, start(0, 0), start(probe, redisProbe))
	want, least, most := costs[0], costs[1], costs[2]
	return start(
		max(probe*(want.plugin-least.plugin)/(most.plugin-least.plugin), 0),
		max(redisProbe*(want.redis-least.redis)/(most.redis-least.redis), 0),
	)
}

// offered returns a turn of a subject at a rate, after a lead-in.
func offered(b *testing.B, u *subject, rate float64) turn {
	b.Helper()
	if _, err := u.offer(latencyConnections, rate, leadIn); err != nil {
		b.Fatal(err)
	}
	used := u.cpuTime(b)
	took, err := u.offer(latencyConnections, rate, latencyTurn)
	require.NoError(b, err)
	slices.Sort(took)
	return turn{took, float64((u.cpuTime(b) - used).Nanoseconds()) / 1e3 / float64(len(took))}
}

// turn has the sorted durations of a turn's events, and the processor time of the plugin for each, in microseconds.
type turn struct {
	took []time.Duration
	cpu  float64
}

// ms returns the p-th percentile of a turn's durations, in milliseconds.
func (t turn) ms(p int) float64 { return percentile(t.took, p) }
