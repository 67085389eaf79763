package fair

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// tolerance is the relative error of sums of floating-point numbers.
const tolerance = 1e-9

func TestWhereAllFitsEveryTenantCanGrow(t *testing.T) {
	if level := Fill(1000, []Demand{{600, 600, 1}, {100, 100, 1}, {100, 100, 2}}); level != 600+200.0/4 {
		t.Errorf("the level is %v", level)
	}
	if level := Fill(1000, nil); level != 1000 {
		t.Errorf("without demand the level is %v, want all", level)
	}
}

func drawDemands(t *rapid.T) []Demand {
	demand := rapid.Custom(func(t *rapid.T) Demand {
		tokens := rapid.Float64Range(0, 1e6).Draw(t, "tokens")
		usable := tokens * rapid.Float64Range(0, 1).Draw(t, "usable")
		return Demand{tokens, usable, float64(rapid.IntRange(1, 1000).Draw(t, "weight"))}
	})
	return rapid.SliceOfN(demand, 1, 30).Draw(t, "demands")
}

func TestSharesFitIntoTheRateAndIntoTheDemands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate, demands := rapid.Float64Range(0, 1e6).Draw(t, "rate"), drawDemands(t)
		level, sum := Fill(rate, demands), 0.0
		for i := range demands {
			share := demands[i].Share(level)
			if share > demands[i].Usable {
				t.Fatalf("%v gets %v", demands[i], share)
			}
			sum += share
		}
		if sum > rate*(1+tolerance) {
			t.Fatalf("shares of %v are given, of %v", sum, rate)
		}
	})
}

// To raise the share of a tenant that gets less than it demands, another with no more for its weight would lose.
func TestSharesAreMaxMinFairByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate, demands := rapid.Float64Range(0, 1e6).Draw(t, "rate"), drawDemands(t)
		level, sum, short := Fill(rate, demands), 0.0, false
		for i := range demands {
			share := demands[i].Share(level)
			sum, short = sum+share, short || share < demands[i].Usable*(1-tolerance)
			for j := range demands {
				other := demands[j].Share(level) / demands[j].Weight
				if share < demands[i].Usable*(1-tolerance) && other > share/demands[i].Weight*(1+tolerance) {
					t.Fatalf("%v has %v, and %v has %v for its weight", demands[i], share, demands[j], other)
				}
			}
		}
		if short && sum < rate*(1-tolerance) {
			t.Fatalf("a tenant lacks tokens, and only %v of %v are given", sum, rate)
		}
	})
}

func TestBelowFourFifthsOfTheRateThereAreNoCaps(t *testing.T) {
	l := Limit{Rate: 1000, Capacity: 1000, Left: -1}
	if level, capped := Divide(l, []Demand{{799, 799, 1}}, Demand{}); capped || !math.IsInf(level, 1) {
		t.Errorf("a demand of 799 is capped at %v", level)
	}
	if _, capped := Divide(l, []Demand{{700, 700, 1}}, Demand{100, 100, 50}); !capped {
		t.Error("a demand of 800 is not capped")
	}
}

func TestSmallTenantsTakeAtMostTheirWeightsShare(t *testing.T) {
	l := Limit{Rate: 1000, Capacity: 1000, Left: 250}
	for _, test := range []struct{ small, want float64 }{{100, 900}, {5000, 500}} {
		level, _ := Divide(l, []Demand{{9000, 9000, 1}}, Demand{test.small, test.small, 1})
		if math.Abs(level-test.want) > tolerance*1000 {
			t.Errorf("beside small tenants with a demand of %v the other gets %v, want %v", test.small, level, test.want)
		}
	}
}

func TestTheBucketBeyondItsReserveIsDividedToo(t *testing.T) {
	for _, test := range []struct{ left, want float64 }{{-1, 1000}, {250, 1000}, {5250, 6000}, {0, 750}} {
		level, _ := Divide(Limit{Rate: 1000, Capacity: 60_000, Left: test.left}, []Demand{{9000, 9000, 1}}, Demand{})
		if level != test.want {
			t.Errorf("with %v tokens in the bucket, %v a second are given, want %v", test.left, level, test.want)
		}
	}
}

func TestNodesSplitACapByTheDemandTheyReport(t *testing.T) {
	l := Limit{Rate: 1000, Capacity: 1000, Left: 250}
	rush, steady := IDOf("rush"), IDOf("steady")
	reports := []Report{
		{Left: 250, Named: map[ID]Demand{rush: {6000, 6000, 1}, steady: {200, 200, 1}}},
		{Left: 300, Named: map[ID]Demand{rush: {2000, 2000, 1}, steady: {200, 200, 1}}},
	}
	caps := Merge(l, reports)
	if got := []float64{caps.At(l, rush, 1, 6000), caps.At(l, rush, 1, 2000)}; !slices.Equal(got, []float64{450, 150}) {
		t.Errorf("the nodes' caps are %v, want 450 and 150: 600 by their demand", got)
	}
	at := caps.At(l, steady, 1, 200)
	assert.True(t, at == 600, "a tenant within its share is capped at %v, want at the share, 600", at)
}

func TestDemandThatOtherLimitsDenyTakesNoShare(t *testing.T) {
	l := Limit{Rate: 1000, Capacity: 1000, Left: 250}
	flood, other := IDOf("flood"), IDOf("other")
	caps := Merge(l, []Report{{Left: 250, Named: map[ID]Demand{flood: {9000, 100, 1}, other: {2000, 2000, 1}}}})
	if caps.Level != 900 || caps.Named[flood] != 9000 {
		t.Errorf("caps %+v: the flood uses 100, so the other has 900, and the flood is capped all the same", caps)
	}
}

func TestMessagesSurviveTheirEncoding(t *testing.T) {
	report := Report{Left: 12, Small: Demand{3, 2, 7}, Named: map[ID]Demand{IDOf("a"): {100, 50, 10}, IDOf(""): {9, 9, 1}}}
	got, err := ParseReport(report.Append(nil))
	if err != nil || got.Left != 12 || got.Small != report.Small || len(got.Named) != 2 ||
		got.Named[IDOf("a")] != report.Named[IDOf("a")] {
		t.Errorf("a report becomes %+v, %v", got, err)
	}
	for _, level := range []float64{500, math.Inf(1)} {
		caps := Caps{Level: level, Nodes: 3, Named: map[ID]float64{IDOf("a"): 1000}, Joint: Joint{800, 200}, Free: 7}
		message := caps.Append(nil)
		read, err := ParseCaps(message)
		assert.True(t, err == nil && reflect.DeepEqual(read, caps), "caps become %+v, %v", read, err)
		message[0]++
		if read, err = ParseCaps(message); err == nil {
			t.Errorf("caps of another version become %+v", read)
		}
	}
}

// drawReport draws the demand at one node: that of some tenants by name, and that of small ones together.
func drawReport(t *rapid.T, names int) Report {
	tokens, r := rapid.Float64Range(0, 5000), Report{Left: -1, Named: map[ID]Demand{}}
	small := tokens.Draw(t, "small")
	r.Small = Demand{small, small, float64(rapid.IntRange(1, 5000).Draw(t, "weights"))}
	for i := range names {
		demand := tokens.Draw(t, "demand")
		r.Named[ID(i)] = Demand{demand, demand, math.Pow(10, float64(i%5))}
	}
	return r
}

// passing returns what the caps let through at one node.
func passing(c *Caps, l Limit, r *Report) (sum float64) {
	shared := r.Small.Tokens
	demand := shared
	for id, d := range r.Named {
		through := min(d.Tokens, c.At(l, id, d.Weight, d.Tokens))
		if c.SpendsJointly(l, d.Weight) {
			shared, demand = shared+through, demand+d.Tokens
			continue
		}
		sum += through
	}
	if joint := c.JointAt(l, demand); joint > 0 {
		shared = min(shared, joint)
	}
	return sum + shared
}

func TestAllCapsTogetherLetNoMoreThroughThanTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{Rate: rapid.Float64Range(10, 5000).Draw(t, "rate"), Capacity: 5000, Left: -1}
		names := rapid.IntRange(0, 10).Draw(t, "names")
		reports := make([]Report, rapid.IntRange(1, 4).Draw(t, "nodes"))
		for i := range reports {
			reports[i] = drawReport(t, names)
		}
		caps := Merge(l, reports)
		if math.IsInf(caps.Level, 1) {
			return
		}
		sum := 0.0
		for i := range reports {
			sum += passing(&caps, l, &reports[i])
		}
		// At each node a cap is at least the node's part of what is small.
		if most := l.Rate + float64(names+1)*l.Small(); sum > most*(1+tolerance) {
			t.Fatalf("%v tokens a second pass caps of %v: %+v", sum, l.Rate, caps)
		}
	})
}

func FuzzForeignBytesAreFaultsOrMessages(f *testing.F) {
	f.Add([]byte{})
	f.Add((&Report{Named: map[ID]Demand{1: {1, 1, 1}}}).Append(nil))
	f.Add((&Caps{Level: 1, Named: map[ID]float64{1: 1}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseReport(b); err == nil {
			caps := Merge(Limit{Rate: 100, Capacity: 100}, []Report{r})
			if math.IsNaN(caps.Level) || caps.Level < 0 {
				t.Errorf("level %v", caps.Level)
			}
		}
		if c, err := ParseCaps(b); err == nil && math.IsNaN(c.At(Limit{Rate: 100}, 1, 1, 1)) {
			t.Errorf("%+v gives no cap", c)
		}
	})
}
