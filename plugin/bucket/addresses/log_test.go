package addresses

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

func logPerMinute(t testing.TB, n int64) *policy.Policy {
	t.Helper()
	return policyOf(t, "log", limit.Spec{Algorithm: limit.SlidingLog, Quantity: n, Window: minute})
}

// mostFor returns the most addresses of a budget that has bytes for so many logs of a policy.
func mostFor(p *policy.Policy, logs int) int {
	bound := policy.Bound{Policy: p, Key: policy.Key{Policy: p.Name}}
	return (logs*int(logBytes(&bound)) + keyBytes - 1) / keyBytes
}

func TestLogsThatHaveNoRoomAreCountedByTheirPrefixAndThenInThisProcess(t *testing.T) {
	p := logPerMinute(t, 100)
	w := newWorld(t, mostFor(p, 21), -1)
	for i := range 30 {
		w.take(ofAddress(p, fmt.Sprintf("192.0.%d.1", i)))
	}
	if stats := w.budget.Stats(); stats.Apart != 21 || stats.Prefix != 2 || stats.Local != 7 {
		t.Errorf("%+v: want 21 addresses with a log, 2 with one of their prefix, and 7 counted in this process", stats)
	}
	if stats := w.budget.Stats(); stats.LogBytes > stats.MostLogBytes || stats.LogBytes < stats.MostLogBytes*9/10 {
		t.Errorf("%+v: want the bytes of logs used, and no more", stats)
	}
	w.take(ofAddress(perMinute(t, 100), "192.0.29.1"))
	got := w.subjects()["192.0.29.1"]
	assert.True(t, got == 1, "a bucket without a log was taken from %d times, want once: logs do not take its room", got)
	status, _ := w.take(ofAddress(p, "192.0.0.1"))
	assert.True(t, status[0].Used == 2, "%+v: want an address with a log to keep it", status[0])
}

func TestBytesOfLogsThatHaveExpiredAreFree(t *testing.T) {
	p := logPerMinute(t, 100)
	w := newWorld(t, mostFor(p, 4), -1)
	for range 3 {
		for i := range 10 {
			w.take(ofAddress(p, fmt.Sprintf("192.0.%d.1", i)))
		}
		w.clock.Advance(2 * minute)
	}
	if stats := w.budget.Stats(); stats.Apart != 12 || stats.Prefix != 0 || stats.LogBytes > stats.MostLogBytes {
		t.Errorf("%+v: want 4 addresses with a log in each of 3 rounds", stats)
	}
}

func TestALogThatMayGrowLargerIsCountedAnew(t *testing.T) {
	small, large := logPerMinute(t, 10), logPerMinute(t, 10_000)
	w := newWorld(t, mostFor(small, 100), -1)
	w.take(ofAddress(small, "192.0.2.1"))
	if statuses, _ := w.take(ofAddress(large, "192.0.2.1")); statuses[0].Source != decision.Local {
		t.Errorf("%+v: want a log for which there is no room counted in this process", statuses[0])
	}
}

func TestEachLogOfAnAddressNeedsRoom(t *testing.T) {
	p := logPerMinute(t, 100)
	w := newWorld(t, mostFor(p, 3), -1)
	for i := range 5 {
		b := ofAddress(p, "192.0.2.1")
		b.Key.Endpoint = fmt.Sprint("GET /", i)
		w.take(b)
	}
	stats := w.budget.Stats()
	if stats.Apart+stats.Local != 5 || stats.Apart > 3 || stats.LogBytes > stats.MostLogBytes {
		t.Errorf("%+v: want room for 3 logs at most", stats)
	}
}

func TestALogIsReckonedByWhatItMayGrowTo(t *testing.T) {
	for quantity, want := range map[int64]uint32{1: 2551, 600: 42_276, 10_000: 700_276} {
		bound := ofAddress(logPerMinute(t, quantity), "192.0.2.1")
		got := logBytes(&bound)
		assert.True(t, got == want, "a log of %d is reckoned with %d bytes, want %d", quantity, got, want)
	}
	warns := policyOf(t, "log", limit.Spec{
		Algorithm: limit.SlidingLog, Quantity: limit.MaxLogQuantity, Window: minute, SoftOnly: true, SoftPct: 1000,
	})
	if bound, most := ofAddress(warns, "192.0.2.1"), uint32(9<<20); logBytes(&bound) > most {
		t.Errorf("the largest log is reckoned with %d bytes, want %d at most", logBytes(&bound), most)
	}
	if bound := ofAddress(perMinute(t, 100), "192.0.2.1"); logBytes(&bound) != 0 {
		t.Errorf("a limit without a log has %d bytes of one", logBytes(&bound))
	}
}
