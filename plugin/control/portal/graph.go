package portal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Sizes of a graph in units of its view box, which pages scale to their width.
const (
	graphWidth, graphHeight = 720, 240

	graphLeft, graphRight, graphTop, graphBottom = 8, 8, 20, 24
)

type graphPoint struct {
	At    time.Time
	Value int64
}

// graph is a drawn line with its axes, for the template graph. All coordinates are in units of the view box.
type graph struct {
	Title, Summary string // for readers who do not see it
	Width, Height  int
	Line, Area     string // paths; "" without points
	Limit          *graphLine
	Grid           []graphLine
	Times          []graphLabel
}

type graphLine struct {
	Y, TextY float64
	Label    string
}

type graphLabel struct {
	X             float64
	Anchor, Label string
}

// lineGraph draws points, which are equally far apart and the oldest first, with a line at a limit; 0: there is none.
// Values and the limit are amounts in a unit.
func lineGraph(points []graphPoint, limit int64, unit, title string) graph {
	g := graph{Title: title, Width: graphWidth, Height: graphHeight, Summary: "There are no values."}
	top := max(limit, 1)
	for _, p := range points {
		top = max(top, p.Value)
	}
	top = niceCeil(min(top, maxDrawn))
	y := func(v int64) float64 {
		const height = graphHeight - graphTop - graphBottom
		return tenth(graphTop + height*(1-float64(min(max(v, 0), top))/float64(top)))
	}
	const parts = 2
	for i := range int64(parts + 1) {
		if v := top / parts * i; i == 0 || v > 0 {
			g.Grid = append(g.Grid, lineAt(y(v), amountWords(v, unit)))
		}
	}
	if limit > 0 {
		line := lineAt(y(limit), "limit "+amountWords(limit, unit))
		g.Limit = &line
	}
	if len(points) == 0 {
		return g
	}
	xs := positions(len(points))
	g.draw(points, xs, y)
	g.Times = timeLabels(points, xs)
	g.Summary = summarizePoints(points, limit, unit)
	return g
}

// lineAt returns a horizontal line with its label above.
func lineAt(y float64, label string) graphLine { return graphLine{y, tenth(y - 4), label} }

// positions returns the horizontal position of each of so many points.
func positions(points int) []float64 {
	xs := make([]float64, points)
	for i := range xs {
		xs[i] = tenth(graphLeft + (graphWidth-graphLeft-graphRight)*float64(i)/float64(max(points-1, 1)))
	}
	return xs
}

// draw sets the paths of the line and of the area below it. A single point becomes a line over the whole width.
func (g *graph) draw(points []graphPoint, xs []float64, y func(int64) float64) {
	if len(points) == 1 {
		points, xs = []graphPoint{points[0], points[0]}, []float64{graphLeft, graphWidth - graphRight}
	}
	var line strings.Builder
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&line, "%s%g %g", command, xs[i], y(p.Value))
	}
	g.Line = line.String()
	g.Area = fmt.Sprintf("%sL%g %gL%g %gZ", g.Line, xs[len(xs)-1], y(0), xs[0], y(0))
}

// timeLabels returns labels for the first, the middle and the last point.
func timeLabels(points []graphPoint, xs []float64) []graphLabel {
	last := len(points) - 1
	format := "15:04"
	switch span := points[last].At.Sub(points[0].At); {
	case span > 3*24*time.Hour:
		format = "2 Jan"
	case span > 24*time.Hour:
		format = "Mon 15:04"
	}
	label := func(i int, anchor string) graphLabel {
		return graphLabel{xs[i], anchor, points[i].At.UTC().Format(format)}
	}
	labels := []graphLabel{label(0, "start")}
	if last > 1 {
		labels = append(labels, label(last/2, "middle"))
	}
	if last > 0 {
		labels = append(labels, label(last, "end"))
	}
	return labels
}

// summarizePoints returns what a graph shows, in words.
func summarizePoints(points []graphPoint, limit int64, unit string) string {
	most := slices.MaxFunc(points, func(a, b graphPoint) int { return cmp.Compare(a.Value, b.Value) })
	text := fmt.Sprintf("%s from %s to %s; the highest is %s at %s",
		plural(int64(len(points)), "value"), minuteTime(points[0].At), minuteTime(points[len(points)-1].At),
		amountWords(most.Value, unit), minuteTime(most.At))
	if limit > 0 {
		text += fmt.Sprintf(", %s of the limit of %s", percent(float64(most.Value)/float64(limit)), amountWords(limit, unit))
	}
	return text + "."
}

// maxDrawn is the largest value that a graph draws as it is. A node may report any.
const maxDrawn = 1_000_000_000_000_000_000

// niceCeil returns the least number of the form 2, 4, 6, 8 or 10 times a power of ten that is not below n, so that half
// of it is short to write. n is at most maxDrawn.
func niceCeil(n int64) int64 {
	step := int64(2)
	for n > 5*step {
		step *= 10
	}
	return (n + step - 1) / step * step
}

// tenth returns a coordinate with one decimal.
func tenth(x float64) float64 { return float64(int64(x*10+0.5)) / 10 }
