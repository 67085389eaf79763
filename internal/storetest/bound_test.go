package storetest_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/storetest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

const second = limit.Second

// compile returns the limit of a spec.
func compile(t testing.TB, spec limit.Spec) *limit.Limit {
	t.Helper()
	l, err := limit.New(spec)
	if err != nil {
		t.Fatalf("New(%+v): %v", spec, err)
	}
	return &l
}

// admit returns n admissions of one token each, evenly spread from start to end.
func admit(n int, start, end limit.Micros) []limit.Admission {
	var list []limit.Admission
	for i := range n {
		list = append(list, limit.Admission{At: start + (end-start)*limit.Micros(i)/limit.Micros(max(n-1, 1)), Cost: 1})
	}
	return list
}

func TestCheckFindsOneTokenTooMany(t *testing.T) {
	at := func(seconds float64, cost int64) limit.Admission {
		return limit.Admission{At: 1_000_000*second + limit.Micros(seconds*1e6), Cost: cost}
	}
	window := 10 * second // 1,000,000 s is the start of a window
	cases := map[string]struct {
		spec   limit.Spec
		within []limit.Admission
		beyond limit.Admission // exceeds the bound together with within
	}{
		"token bucket, at once": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: window},
			[]limit.Admission{at(0, 10)},
			at(0, 1),
		},
		"token bucket, later": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: window},
			[]limit.Admission{at(0, 10), at(5, 5)},
			at(5.999999, 1),
		},
		"token bucket, in the middle": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: window, Burst: 3},
			[]limit.Admission{at(0, 3), at(100, 3), at(101, 1), at(200, 3)},
			at(101.5, 1),
		},
		"token bucket, over its history": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: window, Burst: 3},
			[]limit.Admission{at(0, 3), at(2, 2), at(4, 2), at(6, 2)},
			at(6.9, 1),
		},
		"token bucket with a hard zone": {
			limit.Spec{Algorithm: limit.TokenBucket, Quantity: 10, Window: window, SoftPct: 100, HardPct: 150},
			[]limit.Admission{at(0, 15)},
			at(0.999999, 1),
		},
		"leaky bucket": {
			limit.Spec{Algorithm: limit.LeakyBucket, Quantity: 10, Window: window},
			[]limit.Admission{at(0, 1), at(1, 1), at(2, 1)},
			at(2.999999, 1),
		},
		"fixed window": {
			limit.Spec{Algorithm: limit.FixedWindow, Quantity: 10, Window: window},
			[]limit.Admission{at(9.9, 10), at(10, 10)},
			at(19.999999, 1),
		},
		"sliding window, at once": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: window},
			[]limit.Admission{at(9.9, 10)},
			at(9.999999, 1),
		},
		"sliding window, across": {
			limit.Spec{Algorithm: limit.SlidingWindow, Quantity: 10, Window: window},
			[]limit.Admission{at(9.9, 10), at(11, 1), at(15, 4)},
			at(15.999999, 1),
		},
		"sliding log": {
			limit.Spec{Algorithm: limit.SlidingLog, Quantity: 10, Window: window},
			[]limit.Admission{at(3, 4), at(12, 6), at(13, 4)},
			at(21.999999, 1),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := storetest.Bound{Limit: compile(t, c.spec)}
			if err := b.Check(c.within); err != nil {
				t.Fatalf("within the bound: %v", err)
			}
			beyond := append([]limit.Admission{c.beyond}, c.within...)
			if b.Check(beyond) == nil {
				t.Error("one token too many is accepted")
			}
		})
	}
}

// The single pass over a bucket must give the result of comparing every pair.
func TestCheckOfABucketCoversEveryPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := storetest.Limits(limit.TokenBucket).Draw(t, "limit")
		var list []limit.Admission
		at := storetest.Start
		for range rapid.IntRange(1, 12).Draw(t, "admissions") {
			at += max(0, storetest.Gap(t, l))
			list = append(list, limit.Admission{At: at, Cost: min(max(storetest.Cost(t, l), 1), l.Capacity())})
		}
		within := everyPairWithin(l, list)
		if err := (storetest.Bound{Limit: l}).Check(list); (err == nil) != within {
			t.Fatalf("every pair is within the bound: %v; Check: %v", within, err)
		}
	})
}

// everyPairWithin checks sum(i..j) ≤ burst × hard + ticks × quantity ÷ window for every pair, in big rationals.
func everyPairWithin(l *limit.Limit, list []limit.Admission) bool {
	spec := l.Spec()
	pct := int64(100)
	if spec.SoftPct > 0 {
		pct = max(pct, spec.HardPct)
	}
	hard := new(big.Rat).Mul(new(big.Rat).SetInt64(spec.Burst), big.NewRat(pct, 100))
	for i := range list {
		sum := new(big.Int)
		for j := i; j < len(list); j++ {
			sum.Add(sum, big.NewInt(list[j].Cost))
			elapsed := (list[j].At/l.Tick() - list[i].At/l.Tick()) * l.Tick()
			promised := big.NewRat(spec.Quantity, int64(spec.Window))
			promised.Mul(promised, new(big.Rat).SetInt64(int64(elapsed))).Add(promised, hard)
			if new(big.Rat).SetInt(sum).Cmp(promised) > 0 {
				return false
			}
		}
	}
	return true
}

func TestMostFindsTheBusiestWindow(t *testing.T) {
	list := append(admit(5, 0, 4*second), admit(7, 100*second, 103*second)...)
	if n, from := storetest.Most(list, 10*second); n != 7 || from != 100*second {
		t.Errorf("Most = %d from %d, want 7 from 100 s", n, from)
	}
	if n, _ := storetest.Most(list, second); n != 2 {
		t.Errorf("in an interval of one second: %d, want 2: its end is not part of it", n)
	}
	if n, _ := storetest.Most(nil, second); n != 0 {
		t.Errorf("Most of nothing is %d", n)
	}
}
