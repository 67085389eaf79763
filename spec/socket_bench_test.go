//go:build linux

package spec

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/kong/gateway"
)

// rivals returns the plugin with different buckets, and its baselines: the first does nothing, and the second spends
// nothing. The client is connected to their Redis.
func rivals(b *testing.B) ([]*subject, *redis.Client) {
	b.Helper()
	shared := redistest.Single(b)
	inRedis := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed",
		"redis":{"socket":%q,"send_timeout":1000,"read_timeout":1000},`, shared.Socket)
	const tenant, connections = "acme", 16
	subjects := []*subject{
		newSubject(b, "noop", serve(b, "bench-floor", "-loop", "phase"), noLimits, false, tenant),
		newSubject(b, "nothing-spent", serve(b, "bench-floor", "-loop", "phase"), fourScopes(1, ""), true, tenant),
		newSubject(b, "local", servePlugin(b), fourScopes(1, ""), true, tenant),
		newSubject(b, "redis-leased", servePlugin(b), fourScopes(1, inRedis+`"namespace":"leased","accuracy":"leased",`),
			true, tenant),
		newSubject(b, "redis-exact", servePlugin(b), fourScopes(1, inRedis+`"namespace":"exact","accuracy":"exact",`), true,
			tenant),
	}
	for _, u := range subjects {
		u.connect(b, connections)
	}
	return subjects, shared.Client(b)
}

// BenchmarkSocket compares the cost of an event, with four scopes and all headers, with the cost of a plugin that does
// nothing, and of one that spends nothing. All take turns, so that other load affects all alike. Each number is the
// median of its turns. The client shares the machine, so CPU time is more precise than events/s.
//
// nothing-spent asks and answers like the plugin. local adds the buckets and the metrics to it. It adds one question,
// its answer, and the headers to noop.
func BenchmarkSocket(b *testing.B) {
	subjects, client := rivals(b)
	for _, connections := range []int{1, 16} {
		measured := measure(b, client, connections, subjects...)
		for i, u := range subjects {
			cells := map[string]float64{
				"events/s":             over(measured[i], perSecond),
				"cpu-µs/event":         over(measured[i], cpu),
				"cpu-vs-noop":          ratio(measured[i], measured[0], cpu),
				"cpu-vs-nothing-spent": ratio(measured[i], measured[1], cpu),
			}
			if strings.HasPrefix(u.name, "redis-") {
				cells["redis-calls/1000-events"] = 1000 * over(measured[i], func(s spell) float64 { return s.calls })
			}
			row(b, fmt.Sprintf("connections=%d/plugin=%s", connections, u.name), cells)
		}
	}
}

// fourScopesUsedUp is a plugin config like fourScopes, with Kong's own headers off. The limit of a user is one request
// a day.
func fourScopesUsedUp(rest string) string {
	const plenty = `"limit":60000000,"window_size":60`
	return fmt.Sprintf(`{"__seq__":1,"__plugin_id":"p","route_id":"r","user_from":["consumer.username"],%s
		"tiers":[{"name":"a","limits":[{"name":"tenant","scope":"tenant",%s},
		{"name":"endpoint","scope":"tenant+endpoint",%[2]s},
		{"name":"user","scope":"user","limit":1,"window_size":86400,"algorithm":"fixed_window"}]}],
		"global":{"limits":[{"name":"all","scope":"global",%[2]s}]}}`, rest, plenty)
}

// newDenier starts an instance, and sends the request that uses its limit up.
func newDenier(b *testing.B, name string, s *server, config string, denies bool) *subject {
	b.Helper()
	u := &subject{name: name, server: s, id: startInstance(b, s.socket, config), denies: denies}
	u.requests = []gateway.Request{requestOf("acme")}
	c, err := gateway.Dial(s.socket)
	require.NoError(b, err)
	defer c.Close() // an exit has closed it
	_, err = c.HandleEvent(u.id, "access", u.requests[0])
	require.NoError(b, err)
	u.connect(b, 16)
	return u
}

// BenchmarkDenial compares what a denied request costs the plugin's process with what the least plugin that asks one
// question and exits costs its own, and with an admitted request. Every exit ends its connection, as Kong ends it. All
// take turns; each number is the median of its turns.
func BenchmarkDenial(b *testing.B) {
	const exit = `{"__seq__":1,"exit":true}`
	leased := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed","redis":{"socket":%q},`, redistest.Single(b).Socket)
	usedUp := fourScopesUsedUp("")
	subjects := []*subject{
		newDenier(b, "bare-exit", serve(b, "bench-floor", "-loop", "least"), exit, true), // the floor
		newDenier(b, "bare-exit-on-wire", serve(b, "bench-floor"), exit, true),
		newDenier(b, "denied-in-memory", servePlugin(b), usedUp, true),
		newDenier(b, "denied-remembered", servePlugin(b), fourScopesUsedUp(leased), true),
		newDenier(b, "admitted", servePlugin(b), strings.Replace(usedUp, `"limit":1,`, `"limit":60000000,`, 1), false),
	}
	measured := measure(b, nil, 16, subjects...)
	for i, u := range subjects {
		row(b, "plugin="+u.name, map[string]float64{
			"events/s":         over(measured[i], perSecond),
			"cpu-µs/event":     over(measured[i], cpu),
			"cpu-vs-bare":      ratio(measured[i], measured[0], cpu),
			"events/s-vs-bare": ratio(measured[i], measured[0], perSecond),
		})
	}
}

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
