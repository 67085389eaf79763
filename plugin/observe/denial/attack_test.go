package denial

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

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
		stats := r.Stats()
		if len(byOrg) != orgs || stats[0].Written != uint64(orgs*seconds) || stats[0].Dropped[Groups] != 0 {
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
		stats := r.Stats()
		if s := stats[0]; s.Written != seconds*(DefaultMaxGroups+1) || count != seconds*orgs {
			t.Errorf("%d denials written, %+v; want %d lines a second that count all", count, s, DefaultMaxGroups+1)
		}
		assert.EqualValues(t, seconds*(orgs-DefaultMaxGroups), stats[0].Dropped[Groups], "are in lines of others")
	})
}
