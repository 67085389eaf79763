package portal

import (
	"math"
	"strings"
	"testing"
	"time"
)

var graphBegin = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

// hourly returns values an hour apart.
func hourly(values ...int64) []graphPoint {
	points := make([]graphPoint, len(values))
	for i, v := range values {
		points[i] = graphPoint{graphBegin.Add(time.Duration(i) * time.Hour), v}
	}
	return points
}

func TestGraphsAreScaledToTheirValuesAndTheirLimit(t *testing.T) {
	g := lineGraph(hourly(0, 50, 100), 200, "use")
	if want := "M8 216L360 167L712 118"; strings.Contains(g.Line, "NaN") || g.Line != want {
		t.Errorf("the line is %q, want %q", g.Line, want)
	}
	if g.Limit == nil || g.Limit.Y != graphTop || g.Limit.Label != "limit 200" {
		t.Errorf("the limit is %+v, want the top", g.Limit)
	}
	if want := "L712 216L8 216Z"; !strings.HasSuffix(g.Area, want) {
		t.Errorf("the area is %q, want %q at its end", g.Area, want)
	}
	if len(g.Times) != 3 || g.Times[2] != (graphLabel{712, "end", "02:00"}) {
		t.Errorf("the times are %+v", g.Times)
	}
	const summary = "3 values from 22 Nov 2026 00:00 UTC to 22 Nov 2026 02:00 UTC; the highest is 100 at " +
		"22 Nov 2026 02:00 UTC, 50 % of the limit of 200."
	if g.Summary != summary {
		t.Errorf("the summary is %q, want %q", g.Summary, summary)
	}
}

func TestGraphsWithoutALimitHaveNoLineOfOne(t *testing.T) {
	if g := lineGraph(hourly(1, 2), 0, "use"); g.Limit != nil || strings.Contains(g.Summary, "limit") {
		t.Errorf("the limit is %+v, the summary %q", g.Limit, g.Summary)
	}
}

func TestGraphsOfFewOrExtremeValuesStayInTheirBox(t *testing.T) {
	for name, points := range map[string][]graphPoint{
		"none": nil, "one": hourly(5), "zeros": hourly(0, 0), "negative": hourly(-5, 3),
		"huge": hourly(1e18, 1), "one instant": {{graphBegin, 1}, {graphBegin, 2}},
	} {
		g := lineGraph(points, 10, "use")
		if (g.Line == "") != (len(points) == 0) {
			t.Errorf("%s: the line is %q", name, g.Line)
		}
		for _, bad := range []string{"NaN", "Inf", "-"} {
			if strings.Contains(g.Line+g.Area, bad) {
				t.Errorf("%s: the line is %q", name, g.Line)
			}
		}
	}
}

func TestTheTopOfAGraphIsShortToWrite(t *testing.T) {
	for n, want := range map[int64]int64{1: 2, 2: 2, 3: 4, 9: 10, 11: 20, 85: 100, 1000: 1000, 1001: 2000} {
		if got := niceCeil(n); got != want {
			t.Errorf("the top for %d is %d, want %d", n, got, want)
		}
	}
}

func TestAGraphOfValuesThatNoOneCouldUseIsDrawn(t *testing.T) {
	g := lineGraph(hourly(math.MaxInt64, math.MinInt64, 1), math.MaxInt64, "use")
	if want := "M8 20L360 216L712 216"; g.Line != want || g.Limit.Y != graphTop {
		t.Errorf("the line is %q below %+v, want %q", g.Line, g.Limit, want)
	}
	sums := windowSums(hourly(math.MaxInt64, math.MaxInt64, math.MaxInt64), 24*time.Hour, true)
	if g := lineGraph(sums, 1, "use"); g.Line == "" {
		t.Error("sums beyond all numbers are not drawn")
	}
}
