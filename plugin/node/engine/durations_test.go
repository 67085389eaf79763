package engine

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestReportsHaveTheDurationsOfAboutTheLastMinute(t *testing.T) {
	var o observer
	observe := func(took limit.Micros, times int) {
		for range times {
			o.Observe(&decision.Decision{Took: took})
		}
	}
	observe(0, 5) // not measured
	observe(255, 70)
	observe(256, 2)
	observe(limit.Second*3600, 1)
	if got := o.recentDurations(); got[8] != 70 || got[9] != 2 || got[durations-1] != 1 || got[0] != 0 {
		t.Errorf("the first report has %v", got)
	}
	observe(200, 10)
	if got := o.recentDurations(); got[8] != 74 {
		t.Errorf("the next one has %d, want 11/12 of 70 and 10 more", got[8])
	}
	for range 100 {
		o.recentDurations()
	}
	if got := o.recentDurations(); got[8] != 0 {
		t.Errorf("minutes later there are %v", got)
	}
}
