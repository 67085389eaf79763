//go:build linux

package spec

import (
	"fmt"
	"runtime/debug"
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
// and p99-ms are the difference; holds-2ms is 1 when the difference at the 99th percentile is at most 2 ms.
// event-p99-ms is the whole duration with the socket and the wait for a free connection. Each number is the median of
// its turns.
//
// control-p99-ms is the same difference for the control of [newControl], which costs what the plugin costs and does
// nothing else. It is the part of p99-ms that any plugin of that cost adds on this machine. beyond-control-p99-ms is
// what the plugin adds to it.
//
// The time of an event counts from its due instant. Client, plugin and Redis share the machine, and are saturated
// together.
func BenchmarkAddedLatency(b *testing.B) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // less garbage collection in the client
	subjects, client := rivals(b)
	noop := subjects[0]
	for _, u := range subjects {
		if u.name != "local" && u.name != "redis-leased" && u.name != "redis-exact" {
			continue
		}
		control := newControl(b, client, u, saturation(b, u)/2)
		percents := []float64{25, 50, 75}
		turns := map[float64][]sideBySide{}
		for range shortly(latencyRounds) {
			most := saturation(b, u) // again, because the load of the machine changes
			for _, percent := range percents {
				rate := most * percent / 100
				turns[percent] = append(turns[percent], sideBySide{
					rate: rate, noop: offered(b, noop, rate), control: offered(b, control, rate), event: offered(b, u, rate),
				})
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

// sideBySide has turns of three subjects at the same rate, in events a second.
type sideBySide struct {
	rate                 float64
	noop, control, event turn
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
	cells := map[string]float64{
		"events/s":              over(func(t sideBySide) float64 { return t.rate }),
		"p50-ms":                over(func(t sideBySide) float64 { return t.event.ms(50) - t.noop.ms(50) }),
		"p99-ms":                over(func(t sideBySide) float64 { return t.event.ms(99) - t.noop.ms(99) }),
		"control-p99-ms":        over(func(t sideBySide) float64 { return t.control.ms(99) - t.noop.ms(99) }),
		"beyond-control-p99-ms": over(func(t sideBySide) float64 { return t.event.ms(99) - t.control.ms(99) }),
		"event-p99-ms":          over(func(t sideBySide) float64 { return t.event.ms(99) }),
		"noop-p99-ms":           over(func(t sideBySide) float64 { return t.noop.ms(99) }),
		"cpu-µs/event":          over(func(t sideBySide) float64 { return t.event.cpu }),
		"control-cpu-µs/event":  over(func(t sideBySide) float64 { return t.control.cpu }),
	}
	for _, promise := range []float64{1, 2, 5} {
		unit := fmt.Sprintf("holds-%.0fms", promise)
		if cells[unit] = 0; cells["p99-ms"] <= promise {
			cells[unit] = 1
		}
	}
	return cells
}

// percentile returns the p-th percentile of sorted durations, in milliseconds.
func percentile(took []time.Duration, p int) float64 {
	return float64(took[len(took)*p/100].Nanoseconds()) / 1e6
}
