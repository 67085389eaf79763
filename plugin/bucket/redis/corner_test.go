package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/redistest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/soak"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/policy"
)

const (
	day  = 24 * hour
	year = 366 * day
)

// These timelines go where random ones rarely do. The model decides what the answer must be.
func TestLuaDecidesAsGoDoesWhereNumbersAreCutOff(t *testing.T) {
	type request struct {
		after limit.Micros
		spec  limit.Spec
		cost  int64
	}
	// Two limits of one base, of which the slower remembers less.
	fast := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 11, Window: year, Burst: 1500}
	slow := limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: year, Burst: 900}
	// Two limits of one window, of which the smaller counts in finer ticks and can multiply less.
	large := limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 1_000_000, Window: day}
	small := limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10_000, Window: day}
	most := limit.Spec{
		Algorithm: limit.FixedWindow, Quantity: limit.MaxQuantity, Window: year,
		SoftPct: 1000, HardPct: 1000,
	}
	tiny := limit.Spec{Algorithm: limit.SlidingLog, Quantity: 1, Window: year, SoftOnly: true}
	hours6, after6 := likeOtherZoneData(t, 6*hour)
	hours22, after22 := likeOtherZoneData(t, 22*hour)
	cases := map[string][]request{
		"a debt that a slower limit cannot wait for": {
			{0, fast, 1500},
			{hour, slow, 1},
			{30 * day, slow, 0},
			{15 * year, slow, 1},
		},
		"a window that a smaller limit cannot multiply": {
			{0, large, 1_000_000},
			{day, small, 1},
			{19 * hour, small, 100},
			{2 * hour, small, 1},
		},
		"the largest count becomes a log, and a log debt": {
			{0, most, 10 * limit.MaxQuantity},
			{1, tiny, 1},
			{1, fast, 1},
			{1, slow, 1},
			{year, tiny, 1},
		},
		"a count grows in a limit that never denies": {
			{0, limit.Spec{Algorithm: limit.FixedWindow, Quantity: 1, Window: day, SoftOnly: true}, 5},
			{1, large, 3},
			{1, small, 3},
		},
		"a bucket of seconds becomes one of microseconds": {
			{0, slow, 900},
			{12345, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: day}, 1},
			{limit.Second, fast, 10},
		},
		"a bucket of microseconds becomes one of seconds": {
			{0, limit.Spec{Algorithm: limit.TokenBucket, Quantity: 7, Window: hour}, 7},
			{12345, slow, 1},
			{limit.Second, slow, 1},
		},
		"the clock steps back further than anything lasts": {
			{0, small, 10},
			{-2 * year, small, 1},
			{1, fast, 1},
			{-year, tiny, 1},
			{4 * year, tiny, 1},
		},
		"a period goes on that other zone data begins later": {
			{0, hours6, 5},
			{6 * hour, after6, 1},
		},
		"a period is over when other zone data begins the next": {
			{0, hours22, 5},
			{22 * hour, after22, 1},
		},
		"a period goes on that other zone data began earlier": {
			{0, hours6, 5},
			{1, after6, 1},
		},
		"the clock steps back to where nothing is forgotten, and further": {
			{0, fast, 1500},
			{-hour, fast, 1},
			{-limit.Second, slow, 1},
			{3 * hour, small, 10},
			{-2 * day, tiny, 1},
			{-hour - 1, tiny, 1},
		},
	}
	client := redistest.Single(t).Client(t)
	for name, requests := range cases {
		t.Run(name, func(t *testing.T) {
			f, clock, _ := grouped(t, client)
			w := &world{now: storetest.Start, kept: map[policy.Key]kept{}}
			for i, r := range requests {
				w.now += r.after
				clock.Advance(r.after)
				b := costing(bound(t, "p", r.spec), r.cost)
				got, want := f.take(t, b)[0], w.take([]policy.Bound{b}, make([]limit.SlotID, 1))[0]
				require.Equal(t, want, got, "request %d", i)
			}
			w.bounds = []policy.Bound{bound(t, "p", fast)}
			w.compareStates(t, client)
		})
	}
}

// likeOtherZoneData returns two limits by the day with one tag, so that the state of the first is to the second what
// other zone data has left. The day of the first begins within the hour before timelines start, that of the second so
// much later.
func likeOtherZoneData(t *testing.T, later limit.Micros) (first, second limit.Spec) {
	t.Helper()
	byTag := map[uint8][2][]limit.Spec{}
	for west := -14; west <= 12; west++ {
		for anchor := range 24 {
			c, err := calendar.New(calendar.Day, calendar.Anchor{Hour: anchor}, fmt.Sprintf("Etc/GMT%+d", west))
			require.NoError(t, err)
			spec := limit.Spec{Algorithm: limit.FixedWindow, Quantity: 100, Calendar: c}
			l, err := limit.New(spec)
			require.NoError(t, err)
			of := byTag[l.Units().Tag]
			if start, _ := l.PeriodAt(storetest.Start); storetest.Start-start < hour {
				of[0] = append(of[0], spec)
			}
			if start, _ := l.PeriodAt(storetest.Start + later); storetest.Start+later-start < hour {
				of[1] = append(of[1], spec)
			}
			if byTag[l.Units().Tag] = of; len(of[0]) > 0 && len(of[1]) > 0 {
				return of[0][0], of[1][0]
			}
		}
	}
	t.Fatal("no two definitions have one tag")
	return first, second
}

// Logs that are long and busy: entries expire one by one and many at once, are searched, compacted, and forgotten.
func TestSoakLuaKeepsLongLogsAsGoDoes(t *testing.T) {
	client := redistest.Single(t).Client(t)
	playTimelines(t, soak.Count(12, 100), func(rt *rapid.T) {
		flush(t, client)
		w := &world{now: storetest.Start, kept: map[policy.Key]kept{}}
		spec := limit.Spec{
			Algorithm: limit.SlidingLog, Quantity: rapid.Int64Range(5, 200).Draw(rt, "quantity"),
			Window: limit.Second,
		}
		for _, softOnly := range []bool{false, true} {
			spec.SoftOnly = softOnly
			b := of(bound(t, "log", spec), "u")
			if softOnly {
				b.Key.Policy = "soft only"
			}
			w.bounds = append(w.bounds, b)
		}
		// Drawn evenly: what rapid draws itself is mostly small, and no time would pass.
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		pause := 3 * int64(limit.Second) / spec.Quantity
		w.play(rt, client, 600, func() []policy.Bound {
			w.now += limit.Micros(random.Int64N(pause))
			if random.IntN(100) == 0 {
				w.now += limit.Micros(random.Int64N(2 * int64(limit.Second)))
			}
			bounds := append([]policy.Bound(nil), w.bounds[random.IntN(2):]...)
			for i := range bounds {
				bounds[i].Cost = random.Int64N(8)
			}
			return bounds
		})
	})
}

func TestABucketIsNotFoundInAnothersNumbers(t *testing.T) {
	f := newFixture(t)
	one, other := hundred(t), hundred(t)
	other.Key.Policy = "other"
	f.take(t, one)
	value := []byte(f.client.Get(context.Background(), subjectKey(one)).Val())
	copy(value[headSize+nameSize+15:], appendName(nil, &other.Key)) // where numbers lie
	f.set(t, subjectKey(one), value)
	if s := f.take(t, other)[0]; s.Used != 1 {
		t.Errorf("a bucket that is not there has %d used, want 1", s.Used)
	}
	if got := f.client.StrLen(context.Background(), subjectKey(one)).Val(); got != headSize+2*entrySize {
		t.Errorf("two buckets take %d bytes", got)
	}
}
