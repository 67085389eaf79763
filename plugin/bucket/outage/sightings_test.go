package outage

import (
	"fmt"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func TestTheLatestSightingIsReturnedOnce(t *testing.T) {
	s := newSightings(100, 0)
	key := policy.Key{Policy: "daily", GroupID: "acme"}
	if _, _, ok := s.takeOnce(&key); ok {
		t.Error("a bucket that was never seen is recalled")
	}
	for again := range 2 {
		s.remember(&key, 7, 1000)
		s.remember(&key, 5, limit.Micros(2000+again))
		if used, at, ok := s.takeOnce(&key); !ok || used != 5 || at != limit.Micros(2000+again) {
			t.Errorf("recalls %d at %d, %v", used, at, ok)
		}
		if _, _, ok := s.takeOnce(&key); ok {
			t.Error("recalled twice")
		}
	}
}

func TestSightingsAreBoundedAndForgetTheOldest(t *testing.T) {
	const most = 64
	s := newSightings(most, 0)
	key := func(i int) *policy.Key { return &policy.Key{GroupID: fmt.Sprint(i)} }
	for i := range 10 * most {
		s.remember(key(i), 1, limit.Micros(i+1))
	}
	kept, latest := 0, 0
	for i := range 10 * most {
		if _, _, ok := s.takeOnce(key(i)); ok {
			kept++
			if i >= 9*most {
				latest++
			}
		}
	}
	// A set of eight forgets its own oldest, so not all that are left are the latest.
	if kept == 0 || kept > most || latest < kept/2 {
		t.Errorf("%d kept of at most %d, %d of them from the last %d", kept, most, latest, most)
	}
	if _, _, ok := s.takeOnce(key(10*most - 1)); ok {
		t.Error("the last one was recalled already")
	}
}
