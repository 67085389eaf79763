//go:build linux

package spec

import (
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	latencyConnections = 16
	latencyRounds      = 7 // short and many, so that a disturbed turn does not change the median
	latencyTurn        = 400 * time.Millisecond
)

// BenchmarkAddedLatency offers events at 25, 50 and 75 percent of what saturates the plugin on sixteen connections, and
// compares their durations with those through a plugin that does nothing, in the next turn and at the same rate. p50-ms
// and p99-ms are the difference; event-p99-ms is the whole duration with the socket and the wait for a free connection.
// Each number is the median of its turns.
//
// The time of an event counts from its due instant. Client, plugin and Redis share the machine, and are saturated
// together.
func BenchmarkAddedLatency(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // less garbage collection in the client
	subjects, _ := rivals(b)
	noop := subjects[0]
	for _, u := range subjects {
		if u.name != "local" && u.name != "redis-leased" && u.name != "redis-exact" {
			continue
		}
		percents := []float64{25, 50, 75}
		turns := map[float64][]sideBySide{}
		for range shortly(latencyRounds) {
			most := saturation(b, u) // again, because the load of the machine changes
			for _, percent := range percents {
				rate := most * percent / 100
				turns[percent] = append(turns[percent], sideBySide{rate, offered(b, noop, rate), offered(b, u, rate)})
			}
		}
		for _, percent := range percents {
			row(b, fmt.Sprintf("plugin=%s/load=%.0f%%", u.name, percent), latencies(turns[percent]))
		}
	}
}

// saturation returns the number of events a second that a subject answers under overload.
func saturation(b *testing.B, u *subject) float64 {
	b.Helper()
	n, err := u.saturate(latencyConnections, leadIn)
	require.NoError(b, err)
	start := time.Now()
	took, err := u.offer(latencyConnections, 1.5*float64(n)/leadIn.Seconds(), latencyTurn)
	require.NoError(b, err)
	return float64(len(took)) / time.Since(start).Seconds()
}

// offered returns the sorted durations of the events of a turn at a rate, after a lead-in.
func offered(b *testing.B, u *subject, rate float64) []time.Duration {
	b.Helper()
	_, err := u.offer(latencyConnections, rate, leadIn)
	require.NoError(b, err)
	took, err := u.offer(latencyConnections, rate, latencyTurn)
	require.NoError(b, err)
	slices.Sort(took)
	return took
}

// sideBySide has the sorted durations of turns of two subjects at the same rate, in events a second.
type sideBySide struct {
	rate        float64
	noop, event []time.Duration
}

// latencies returns the cells of a row.
func latencies(turns []sideBySide) map[string]float64 {
	over := func(value func(sideBySide) float64) float64 {
		var values []float64
		for _, t := range turns {
			values = append(values, value(t))
		}
		return median(values)
	}
	added := func(p int) float64 {
		return over(func(t sideBySide) float64 { return percentile(t.event, p) - percentile(t.noop, p) })
	}
	return map[string]float64{
		"events/s":     over(func(t sideBySide) float64 { return t.rate }),
		"p50-ms":       added(50),
		"p99-ms":       added(99),
		"event-p99-ms": over(func(t sideBySide) float64 { return percentile(t.event, 99) }),
		"noop-p99-ms":  over(func(t sideBySide) float64 { return percentile(t.noop, 99) }),
	}
}

// percentile returns the p-th percentile of sorted durations, in milliseconds.
func percentile(took []time.Duration, p int) float64 {
	return float64(took[len(took)*p/100].Nanoseconds()) / 1e6
}
