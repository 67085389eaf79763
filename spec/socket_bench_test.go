//go:build linux

package spec

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// rivals returns the plugin with different buckets, and its baselines: the first does nothing, the second spends
// nothing, and the last has go-pdk's server. The client is connected to their Redis.
func rivals(b *testing.B) ([]*subject, *redis.Client) {
	b.Helper()
	shared := redistest.Single(b)
	inRedis := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed",
		"redis":{"socket":%q,"send_timeout":1000,"read_timeout":1000},`, shared.Socket)
	const tenant, connections = "acme", 16
	subjects := []*subject{
		newSubject(b, "noop", serve(b, "noop"), noLimits, false, tenant),
		newSubject(b, "nothing-spent", serve(b, "noop"), fourScopes(1, ""), true, tenant),
		newSubject(b, "local", servePlugin(b), fourScopes(1, ""), true, tenant),
		newSubject(b, "redis-leased", servePlugin(b), fourScopes(1, inRedis+`"namespace":"leased","accuracy":"leased",`),
			true, tenant),
		newSubject(b, "redis-exact", servePlugin(b), fourScopes(1, inRedis+`"namespace":"exact","accuracy":"exact",`), true,
			tenant),
		newSubject(b, "local-on-go-pdk", serve(b, "onpdk"), fourScopes(1, ""), true, tenant),
	}
	for _, u := range subjects {
		u.connect(b, connections)
	}
	return subjects, shared.Client(b)
}

// spell is the measurement of one turn.
type spell struct {
	perSecond float64 // events
	cpu       float64 // microseconds of the plugin's process for each event
	calls     float64 // of scripts in Redis for each 1000 events
}

// BenchmarkSocket compares the cost of an event, with four scopes and all headers, with that of a plugin that does
// nothing, one that spends nothing, and the same plugin with go-pdk's server. All take turns, so that other load
// affects all alike. Each number is the median of its turns. The client shares the machine, so CPU time is more precise
// than events/s.
//
// nothing-spent asks and answers like the plugin. local adds the buckets and the metrics to it. It adds one question,
// its answer, and the headers to noop.
func BenchmarkSocket(b *testing.B) {
	const rounds, turn = 9, 400 * time.Millisecond
	subjects, client := rivals(b)
	for _, connections := range []int{1, 16} {
		measured := make([][]spell, len(subjects))
		for range shortly(rounds) {
			for i, u := range subjects {
				measured[i] = append(measured[i], measure(b, u, client, connections, turn))
			}
		}
		for i, u := range subjects {
			cells := map[string]float64{
				"events/s":             over(measured[i], func(s spell) float64 { return s.perSecond }),
				"cpu-µs/event":         over(measured[i], func(s spell) float64 { return s.cpu }),
				"cpu-vs-noop":          ratio(measured[i], measured[0]),
				"cpu-vs-nothing-spent": ratio(measured[i], measured[1]),
				"cpu-vs-go-pdk":        ratio(measured[i], measured[len(measured)-1]),
			}
			if strings.HasPrefix(u.name, "redis-") {
				cells["redis-calls/1000-events"] = over(measured[i], func(s spell) float64 { return s.calls })
			}
			row(b, fmt.Sprintf("connections=%d/plugin=%s", connections, u.name), cells)
		}
	}
}

// measure measures one turn.
func measure(b *testing.B, u *subject, client *redis.Client, connections int, turn time.Duration) spell {
	b.Helper()
	if _, err := u.saturate(connections, leadIn); err != nil {
		b.Fatal(err)
	}
	calls, used, begun := scripts(b, client), u.cpuTime(b), time.Now()
	n, err := u.saturate(connections, turn)
	require.NoError(b, err)
	events := float64(n)
	return spell{
		perSecond: events / time.Since(begun).Seconds(),
		cpu:       float64((u.cpuTime(b) - used).Nanoseconds()) / 1e3 / events,
		calls:     float64(scripts(b, client)-calls) * 1e3 / events,
	}
}

// over returns the median of one value of all turns.
func over(spells []spell, value func(spell) float64) float64 {
	var values []float64
	for _, s := range spells {
		values = append(values, value(s))
	}
	return median(values)
}

// ratio returns the median ratio of the CPU times of an event.
func ratio(spells, others []spell) float64 {
	var ratios []float64
	for i := range spells {
		ratios = append(ratios, spells[i].cpu/others[i].cpu)
	}
	return median(ratios)
}

// info returns one section of Redis's INFO.
func info(b *testing.B, client *redis.Client, section string) map[string]string {
	b.Helper()
	text, err := client.Info(context.Background(), section).Result()
	if err != nil {
		b.Fatalf("info %s: %v", section, err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}
