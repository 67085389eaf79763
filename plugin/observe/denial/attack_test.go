package denial

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestSoakAnAttackGivesExactCountsAndBoundedLinesAndMemory(t *testing.T) {
	const (
		orgs, perSecond = 1000, 100_000
		mostMemory      = 24 << 20
	)
	seconds := soak.Count(3, 10)
	decisions := make([]*decision.Decision, orgs)
	for i := range decisions {
		decisions[i] = decided(fmt.Sprintf("org-%d", i), answered{named("minute", policy.Tenant), denies})
	}
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{})
		before := heap()
		for range seconds {
			for i := range perSecond {
				r.Observe(decisions[i%orgs])
			}
			if grown := heap() - before; grown > mostMemory {
				t.Errorf("the heap has grown by %d bytes, want at most %d", grown, mostMemory)
			}
			wait(time.Second)
		}
		end()
		byOrg := map[string]uint64{}
		for _, e := range to.events(t) {
			byOrg[e.Org] += e.Count
		}
		for org, count := range byOrg {
			if count != uint64(seconds*perSecond/orgs) {
				t.Fatalf("%s has %d denials, want %d", org, count, seconds*perSecond/orgs)
			}
		}
		stats := accounted(t, r)
		written := Tally{uint64(orgs * seconds), uint64(seconds * perSecond)}
		if len(byOrg) != orgs || stats.Sinks[0].Written != written || stats.Folded != 0 {
			t.Errorf("%d tenants, %+v; want %d lines and no drops", len(byOrg), stats, orgs*seconds)
		}
	})
}

// heap is how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAnAttackUnderManyNamesIsBounded(t *testing.T) {
	const (
		orgs, seconds = 20_000, 2
		mostMemory    = 32 << 20 // two seconds: that which is counted, and the lines of the one before
	)
	decisions := make([]*decision.Decision, orgs)
	for i := range decisions {
		decisions[i] = decided(fmt.Sprintf("%0128d", i), answered{named("minute", policy.Tenant), denies})
	}
	synctest.Test(t, func(t *testing.T) {
		r, to, end := running(t, Options{})
		before := heap()
		for range seconds {
			for _, d := range decisions {
				r.Observe(d)
			}
			if grown := heap() - before; grown > mostMemory {
				t.Errorf("the heap has grown by %d bytes, want at most %d", grown, mostMemory)
			}
			wait(time.Second)
		}
		end()
		count, _ := sums(to.events(t))
		stats := accounted(t, r)
		if s := stats.Sinks[0]; s.Written != (Tally{seconds * (DefaultMaxGroups + 1), seconds * orgs}) ||
			count != seconds*orgs {
			t.Errorf("%d denials written, %+v; want %d lines a second that count all", count, s, DefaultMaxGroups+1)
		}
		assert.EqualValues(t, seconds*(orgs-DefaultMaxGroups), stats.Folded, "are in lines of others")
	})
}

// BenchmarkLine measures what it costs to make a line, beside the requests.
func BenchmarkLine(b *testing.B) {
	r := New(Options{Log: slog.New(slog.DiscardHandler)})
	r.Observe(decided("acme", answered{named("minute", policy.Tenant), denies}))
	b.ReportAllocs()
	for b.Loop() {
		for _, g := range r.window.groups {
			_, err := r.encode(g)
			require.NoError(b, err)
		}
	}
}
