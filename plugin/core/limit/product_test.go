package limit

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The arithmetic is exact in a double only while no product exceeds MaxProduct and no sum exceeds 2^53. These tests
// multiply out, in big integers, what a limit is about to multiply in 64 bits.

const maxDouble = 1 << 53

// product names what is multiplied, for the message.
type product struct {
	name string
	x, y int64
}

// products are all products of one request: the same ones that the algorithms form.
func (l *Limit) products(s *State, now Micros, cost int64) []product {
	cost = max(0, min(cost, l.Capacity())) // others are answered before anything is multiplied
	list := []product{
		{"cost × base", cost, l.base},
		{"capacity × base", l.spec.Burst, l.base},
	}
	switch l.kind {
	case TokenBucket:
		owed := Micros(ceilDiv(s.Spent, l.rate))
		if elapsed := now/l.tick - s.At/l.tick; elapsed > 0 {
			list = append(list, product{"elapsed × rate", int64(min(elapsed, owed)), l.rate})
		}
		list = append(list,
			product{"ticks to full × tick", int64(owed), int64(l.tick)},
			product{"ticks to full with the cost × tick", ceilDiv(max(0, s.Spent-(l.hard-cost*l.base)), l.rate), int64(l.tick)})
	case SlidingWindow:
		current := min(s.Spent, MaxProduct/l.ticks)
		list = append(list,
			product{"previous × ticks", s.Previous, l.ticks},
			product{"current × ticks", current, l.ticks})
	}
	return list
}

func checkProducts(t *rapid.T, l *Limit, s *State, now Micros, cost int64) {
	for _, p := range l.products(s, now, cost) {
		exact := new(big.Int).Mul(big.NewInt(p.x), big.NewInt(p.y))
		most := big.NewInt(MaxProduct)
		if p.name == "elapsed × rate" || p.name == "ticks to full × tick" { // rounded up to a whole tick
			most.Add(most, big.NewInt(max(p.x, p.y)))
		}
		require.True(t, exact.Cmp(most) <= 0, "%+v: %s = %d × %d exceeds %d", l.spec, p.name, p.x, p.y, int64(MaxProduct))
	}
	for name, field := range map[string]int64{
		"spent": s.Spent, "previous": s.Previous, "base": s.Base, "at": int64(s.At),
	} {
		require.True(t, field >= 0 && field <= maxDouble, "%+v: %s is %d, which is no exact double", l.spec, name, field)
	}
}

// anySpec draws from the whole range of specs, with the largest and smallest values often, and some out of range.
func anySpec() *rapid.Generator[Spec] {
	edge := func(largest int64) *rapid.Generator[int64] {
		return rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, largest), rapid.Int64Range(largest-20, largest),
			rapid.Int64Range(-1, largest+1))
	}
	return rapid.Custom(func(t *rapid.T) Spec {
		return Spec{
			Algorithm: Algorithm(rapid.IntRange(0, 6).Draw(t, "algorithm")),
			Quantity: edge(
				rapid.SampledFrom([]int64{MaxLogQuantity, 1e6, 1e9, MaxQuantity}).Draw(t, "quantity up to")).Draw(t, "quantity"),
			Window:   Micros(edge(int64(MaxWindow/Second)).Draw(t, "window")) * Second,
			Burst:    rapid.OneOf(rapid.Just(int64(0)), edge(MaxQuantity), edge(1e6)).Draw(t, "burst"),
			SoftPct:  rapid.OneOf(rapid.Just(int64(0)), edge(1000)).Draw(t, "soft"),
			HardPct:  rapid.OneOf(rapid.Just(int64(0)), edge(1000)).Draw(t, "hard"),
			SoftOnly: rapid.Bool().Draw(t, "soft only"),
		}
	})
}

func TestNoProductOfAnAcceptedSpecIsTooLarge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		now := Micros(1_700_000_000_123_457)
		for i := range 4 { // limits of any kind take over from one another
			l, err := New(anySpec().Draw(t, fmt.Sprintf("spec %d", i)))
			if err != nil {
				continue
			}
			for range 6 {
				gap := rapid.OneOf(rapid.Int64Range(0, int64(2*l.spec.Window)), rapid.Int64Range(0, 1000),
					rapid.Just(int64(MaxWindow)))
				now += Micros(gap.Draw(t, "gap"))
				cost := rapid.OneOf(rapid.Int64Range(0, l.Capacity()), rapid.Just(l.Capacity()), rapid.Int64()).Draw(t, "cost")
				l.Advance(&s, now)
				checkProducts(t, &l, &s, now, cost)
				if l.Wait(&s, now, cost) == 0 {
					l.Spend(&s, now, cost)
				}
				checkProducts(t, &l, &s, now, cost)
				l.Status(&s, now)
			}
		}
	})
}

// Every limit that is accepted, full to the brim, can say in exact doubles when it will be empty.
func TestWaitsOfEveryAcceptedSpecFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := New(anySpec().Draw(t, "spec"))
		if err != nil {
			t.Skip("invalid")
		}
		require.True(t, l.Capacity() >= 1, "%+v: nothing can ever be spent", l.spec)
		const now = Micros(1_700_000_000_123_457)
		var s State
		l.Advance(&s, now)
		l.Spend(&s, now, l.Capacity())
		wait := l.Wait(&s, now, l.Capacity())
		require.True(t, l.spec.SoftOnly == (wait == 0) && wait <= MaxProduct, "%+v: full, it waits %d µs", l.spec, wait)
		end := max(l.Status(&s, now).Reset, l.Expiry(&s, now))
		require.True(t, end > now && end <= maxDouble, "%+v: expires at %d", l.spec, end)
	})
}

// The finest tick is chosen, so that a limit is not coarser than it must be.
func TestTickIsTheFinestThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := New(anySpec().Draw(t, "spec"))
		if err != nil {
			t.Skip("invalid")
		}
		for _, tick := range ticks {
			finer := l
			if tick < l.tick && finer.scale(tick) {
				t.Fatalf("%+v counts in ticks of %d µs, and could in %d", l.spec, l.tick, tick)
			}
		}
	})
}

func TestPercentIsExactOrAnError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.OneOf(rapid.Int64Range(1, 1e5), rapid.Int64Range(1, int64(MaxWindow)),
			rapid.Just(int64(1)<<32)).Draw(t, "base")
		pct := rapid.Int64Range(1, 2000).Draw(t, "pct")
		limit := MaxProduct / base
		tokens := rapid.OneOf(
			rapid.Int64Range(1, MaxQuantity),
			rapid.Int64Range(1, min(2*limit+2, MaxQuantity)),
			rapid.Int64Range(min(limit*100/pct, MaxQuantity), min(limit*100/pct, MaxQuantity)+1),
			rapid.Just(int64(1)<<32), // 2^32 × 2^32 is 0 in 64 bits
		).Draw(t, "tokens")
		full := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(base))
		want := new(big.Int).Mul(full, big.NewInt(pct))
		want.Quo(want, big.NewInt(100))
		fits := full.Cmp(big.NewInt(MaxProduct)) <= 0 && want.Cmp(big.NewInt(MaxProduct)) <= 0
		got, ok := percent(tokens, base, pct)
		if ok != fits || (ok && got != want.Int64()) {
			t.Fatalf("percent(%d, %d, %d) = %d, %v; want %d, %v", tokens, base, pct, got, ok, want, fits)
		}
	})
}
