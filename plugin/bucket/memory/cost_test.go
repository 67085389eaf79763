//go:build !race

package memory_test

import (
	"context"
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
)

// With the race detector a pool drops some of what is put into it.

func TestTakeAllocatesNothingWhereTheBucketsExist(t *testing.T) {
	for _, n := range []int{1, 4, 8, 9, 100} {
		clock := storetest.NewClock()
		s := memory.New(memory.Options{Now: clock.Now})
		bounds, statuses := manyBounds(t, n, "acme"), make([]decision.Status, n)
		allocations := testing.AllocsPerRun(1000, func() {
			clock.Advance(1000)
			if err := s.Take(context.Background(), bounds, statuses); err != nil || !statuses[0].Admits() {
				t.Fatalf("take: %v, %+v", err, statuses[0])
			}
		})
		if allocations != 0 {
			t.Errorf("%d bounds: %v allocations", n, allocations)
		}
	}
}

func TestSettleAllocatesNothingWhereTheBucketsExist(t *testing.T) {
	clock := storetest.NewClock()
	s := memory.New(memory.Options{Now: clock.Now})
	bounds, statuses, actual := manyBounds(t, 4, "acme"), make([]decision.Status, 4), []int64{0, 1, 2, 3}
	allocations := testing.AllocsPerRun(1000, func() {
		clock.Advance(1000)
		if err := s.Take(context.Background(), bounds, statuses); err != nil || !statuses[0].Charged {
			t.Fatalf("take: %v, %+v", err, statuses[0])
		}
		if err := s.Settle(context.Background(), bounds, statuses, actual); err != nil || statuses[0].Settled != -1 {
			t.Fatalf("settle: %v, %+v", err, statuses[0])
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
}
