package storetest_test

import (
	"testing"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestReservationsMayExceedTheBoundByTheExcessOfThoseInFlightAlone(t *testing.T) {
	const start = 1_000_000 * second // of a window
	for _, spec := range []limit.Spec{
		{Algorithm: limit.TokenBucket, Quantity: 10, Window: 10 * second},
		{Algorithm: limit.FixedWindow, Quantity: 10, Window: 10 * second},
	} {
		b := storetest.Bound{Limit: compile(t, spec)}
		// The first is admitted and settled before the last one's take begins, or after it.
		list := []storetest.Reservation{
			{At: start, Reserved: 2, Actual: 9, Began: 1, Settled: 5},
			{At: start + 1, Reserved: 3, Actual: 1, Began: 2, Settled: storetest.InFlight},
			{At: start + 2, Reserved: 1, Actual: 0, Began: 3, Settled: 4},
		}
		for began, within := range map[int64]bool{4: true, 5: true, 6: false} {
			last := storetest.Reservation{At: start + 3, Reserved: 1, Actual: 0, Began: began, Settled: storetest.InFlight}
			if err := b.CheckReservations(append(list, last)); err != nil {
				t.Errorf("%s, the last take begins at %d: %v", spec.Algorithm, began, err)
			}
			last.Actual = 1
			if err := b.CheckReservations(append(list, last)); (err == nil) != within {
				t.Errorf("%s, the last take begins at %d and costs 1: %v, want it within the bound: %v",
					spec.Algorithm, began, err, within)
			}
		}
		list[0].Reserved = 9 // no request costs more than it reserved, so the bound itself holds
		last := storetest.Reservation{At: start + 3, Reserved: 1, Actual: 1, Began: 4, Settled: storetest.InFlight}
		if b.CheckReservations(append(list, last)) == nil {
			t.Errorf("%s: 11 tokens of 10 are accepted", spec.Algorithm)
		}
		last.At = start + 20*second
		if err := b.CheckReservations(append(list, last)); err != nil {
			t.Errorf("%s, once all has come back: %v", spec.Algorithm, err)
		}
	}
}
