//go:build linux

package spec

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
)

// rivals are the plugin with its buckets in different places, and what it is compared with: the first does nothing, the
// second spends nothing, the last is behind go-pdk's own server. The client is one to the Redis that they share.
func rivals(b *testing.B) ([]*subject, *redis.Client) {
	b.Helper()
	shared := redistest.Single(b)
	inRedis := fmt.Sprintf(`"strategy":"redis","fail_mode":"closed","redis":{"socket":%q,"send_timeout":1000,"read_timeout":1000},`, shared.Socket) // patient: the machine is busy
	const tenant, connections = "acme", 16
	subjects := []*subject{
		newSubject(b, "noop", serve(b, "noop"), noLimits, false, tenant),
		newSubject(b, "nothing-spent", serve(b, "noop"), fourScopes(1, ""), true, tenant),
		newSubject(b, "local", servePlugin(b), fourScopes(1, ""), true, tenant),
		newSubject(b, "redis-leased", servePlugin(b), fourScopes(1, inRedis+`"namespace":"leased","accuracy":"leased",`), true, tenant),
		newSubject(b, "redis-exact", servePlugin(b), fourScopes(1, inRedis+`"namespace":"exact","accuracy":"exact",`), true, tenant),
		newSubject(b, "local-on-go-pdk", serve(b, "onpdk"), fourScopes(1, ""), true, tenant),
	}
	for _, u := range subjects {
		u.connect(b, connections)
	}
	return subjects, shared.Client(b)
}

// spell is what one turn of a subject measured.
type spell struct {
	perSecond float64 // events
	cpu       float64 // microseconds of the plugin's process for each event
	calls     float64 // of scripts in Redis for each 1000 events
}

// BenchmarkSocket compares what an event costs the plugin's process, four scopes and all headers, with what it costs a
// plugin that does nothing, one that spends nothing, and the same plugin behind go-pdk's own server. All take turns, so
// that what else the machine does hits all alike: each number is the median of its turns. The client, which plays Kong's
// workers, shares the machine; so events/s tell less than CPU time.
//
// nothing-spent asks and answers what the plugin does: what local adds to it are the buckets and the metrics, and what it
// adds to noop is one question, its answer, and the headers.
func BenchmarkSocket(b *testing.B) {
	const rounds, turn = 9, 400 * time.Millisecond
	subjects, client := rivals(b)
	for _, connections := range []int{1, 16} {
		measured := make([][]spell, len(subjects))
		for range rounds {
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

func measure(b *testing.B, u *subject, client *redis.Client, connections int, turn time.Duration) spell {
	b.Helper()
	if _, err := u.saturate(connections, leadIn); err != nil {
		b.Fatal(err)
	}
	calls, used, begun := scripts(b, client), u.cpuTime(b), time.Now()
	n, err := u.saturate(connections, turn)
	if err != nil {
		b.Fatal(err)
	}
	events := float64(n)
	return spell{
		perSecond: events / time.Since(begun).Seconds(),
		cpu:       float64((u.cpuTime(b) - used).Nanoseconds()) / 1e3 / events,
		calls:     float64(scripts(b, client)-calls) * 1e3 / events,
	}
}

// over is the median of one thing that all turns measured.
func over(spells []spell, value func(spell) float64) float64 {
	var values []float64
	for _, s := range spells {
		values = append(values, value(s))
	}
	return median(values)
}

// ratio is how much CPU time an event costs beside another subject's, in the median of the rounds.
func ratio(spells, others []spell) float64 {
	var ratios []float64
	for i := range spells {
		ratios = append(ratios, spells[i].cpu/others[i].cpu)
	}
	return median(ratios)
}

// info is one section of what Redis says about itself.
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
