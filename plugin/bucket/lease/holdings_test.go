package lease

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
)

func TestEveryTokenHeldIsSpentReturnedOrExpiredOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var l holdings
		var now limit.Micros
		var open []grant
		var granted, spent, returned int64
		ends := map[limit.Micros]int64{} // tokens granted until then
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "step") {
			case 0:
				now += limit.Micros(rapid.IntRange(0, 40).Draw(rt, "time"))
			case 1:
				l.beginRenewal(rapid.Int64Range(1, 50).Draw(rt, "requested"))
			case 2:
				g := grant{
					tokens: l.requested, receipt: limit.Receipt{At: now}, since: now,
					ends: now + limit.Micros(rapid.IntRange(1, 100).Draw(rt, "life")),
				}
				granted += g.tokens
				ends[g.ends] += g.tokens
				l.endRenewal(g)
			case 3, 4:
				cost := rapid.Int64Range(0, 30).Draw(rt, "cost")
				var d grant
				if l.draw(&d, cost, now) {
					open = append(open, d)
					if d.tokens != cost || now >= d.ends {
						rt.Fatalf("drew %d that end at %d, want %d after %d", d.tokens, d.ends, cost, now)
					}
				}
			case 5:
				if len(open) > 0 {
					admitted := rapid.Bool().Draw(rt, "admitted")
					if l.settle(&open[0], admitted, now); admitted {
						spent += open[0].tokens
					}
					open = open[1:]
				}
			case 6:
				for _, g := range l.withdraw(now-limit.Micros(rapid.IntRange(0, 50).Draw(rt, "age")), now) {
					got := rapid.Int64Range(0, g.tokens).Draw(rt, "got back")
					l.endReturn(g.tokens, got)
					returned += got
				}
			}
			if got := l.sums; got.Granted != granted || got.Spent != spent || got.Returned != returned {
				rt.Fatalf("sums are %+v; granted %d, spent %d, returned %d", got, granted, spent, returned)
			}
			if l.sums.Granted != l.sums.Spent+l.sums.Returned+l.sums.Expired+l.available()+l.pending {
				rt.Fatalf("tokens are missing: %+v", l)
			}
			if l.expire(now); l.available() > alive(ends, now) {
				rt.Fatalf("%d are free at %d, but only %d were granted for so long", l.available(), now, alive(ends, now))
			}
		}
	})
}

// alive is how many of the granted tokens have not ended.
func alive(ends map[limit.Micros]int64, now limit.Micros) int64 {
	var sum int64
	for end, tokens := range ends {
		if end > now {
			sum += tokens
		}
	}
	return sum
}

func TestTheOldestGrantIsSpentFirst(t *testing.T) {
	var l holdings
	l.endRenewal(grant{tokens: 5, receipt: limit.Receipt{At: 1}, since: 1, ends: 100})
	l.endRenewal(grant{tokens: 5, receipt: limit.Receipt{At: 2}, since: 2, ends: 200})
	var d grant
	if ok := l.draw(&d, 4, 50); !ok || d.ends != 100 {
		t.Fatalf("drew %+v, want of the first", d)
	}
	if ok := l.draw(&d, 3, 50); !ok || d.receipt.At != 1 || d.ends != 100 {
		t.Fatalf("drew %+v, want of both with what is worse of each", d)
	}
	if l.expire(150); l.available() != 3 {
		t.Errorf("%d are free after the first has ended, want 3 of the second", l.available())
	}
	assert.False(t, l.draw(&d, 1, 200), "a token was drawn that had ended")
}

func TestDemandFollowsTheRateAndIsForgottenInSilence(t *testing.T) {
	var d demand
	now := limit.Micros(1e12)
	for range 100 {
		d.observe(50, now)
		now += span / 10
	}
	if got := d.perSpan(now); got < 450 || got > 500 {
		t.Errorf("at 50 tokens each tenth of a span, demand is %d", got)
	}
	if got := d.perSpan(now + 12*span); got > 0 {
		t.Errorf("after 12 spans of silence, demand is %d", got)
	}
	d.observe(1000, now+12*span)
	assert.EqualValues(t, 1000, d.perSpan(now+12*span), "a sudden 1000 are a demand of")
}

func TestADrawThatHasEndedDoesNotShortenWhatCameAfter(t *testing.T) {
	var l holdings
	l.endRenewal(grant{tokens: 5, ends: 100})
	var d grant
	require.True(t, l.draw(&d, 5, 50), "5 of 5 tokens were not drawn")
	l.endRenewal(grant{tokens: 7, ends: 200})
	l.settle(&d, false, 150)
	if l.expire(150); l.available() != 7 || l.sums.Expired != 5 {
		t.Errorf("%d are free, %d expired", l.available(), l.sums.Expired)
	}
}
