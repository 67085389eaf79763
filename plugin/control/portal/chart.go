package portal

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

// chart is a graph, for the template chart: a table of its values, from which chart.js draws it.
type chart struct {
	Title  string
	Unit   string        // of the values; "": requests or tokens
	Step   time.Duration // between two points
	Levels bool          // a value is the state at its time, drawn as a line; false: a count in its step, drawn as a bar
	Series []series      // with the same times. Bars are stacked, the first one at the bottom
	Lines  []chartLine
	Bands  []chartBand
	Marks  []chartMark
}

// series are the values of one name, and the class of their color: ok, warn, bad or accent.
type series struct {
	Name, Class string
	Points      []point
}

type point struct {
	At    time.Time
	Value int64
}

// Total returns the sum of the values.
func (s series) Total() (sum int64) {
	for _, p := range s.Points {
		sum += p.Value
	}
	return sum
}

// chartLine is a horizontal line at a limit.
type chartLine struct {
	Name  string
	Value int64
}

// chartBand is a time in which an override held; Until zero: it has no end.
type chartBand struct {
	Name        string
	From, Until time.Time
}

// chartMark is an instant at which something changed.
type chartMark struct {
	Name string
	At   time.Time
}

// Rows returns the values of all series by time.
func (c chart) Rows() (rows []chartRow) {
	for i, p := range c.Series[0].Points {
		row := chartRow{At: p.At}
		for _, s := range c.Series {
			row.Values = append(row.Values, s.Points[i].Value)
		}
		rows = append(rows, row)
	}
	return rows
}

type chartRow struct {
	At     time.Time
	Values []int64
}

// StepWords returns what a bar covers: "15 minutes".
func (c chart) StepWords() string { return windowWords(int64(c.Step / time.Second)) }

// Summary returns what the graph shows, in words.
func (c chart) Summary() string {
	points := c.Series[0].Points
	if len(points) == 0 {
		return "There are no values."
	}
	text := fmt.Sprintf("From %s to %s", minuteTime(points[0].At), minuteTime(points[len(points)-1].At.Add(c.Step)))
	for _, s := range c.Series {
		most := slices.MaxFunc(s.Points, func(a, b point) int { return cmp.Compare(a.Value, b.Value) })
		text += fmt.Sprintf("; %s: the highest is %s at %s", s.Name, amountWords(most.Value, c.Unit), minuteTime(most.At))
		if len(c.Lines) == 1 && len(c.Series) == 1 && c.Lines[0].Value > 0 {
			text += ", " + percent(float64(most.Value)/float64(c.Lines[0].Value)) + " of the limit"
		}
	}
	return text + "."
}

// requestsChart returns the graph of what became of requests, with denied ones on top.
func requestsChart(h *answers.UsageHistory, bucket time.Duration) chart {
	of := func(name, class string, value func(*answers.UsageRow) int64) series {
		return series{name, class, pointsOf(*h, bucket, value)}
	}
	c := chart{Title: "Requests", Step: bucket, Series: []series{
		of("Admitted", "accent", func(r *answers.UsageRow) int64 { return r.Admitted - r.Soft }),
	}}
	warned := of("Admitted with a warning", "caution", func(r *answers.UsageRow) int64 { return r.Soft })
	if warned.Total() > 0 {
		c.Series = append(c.Series, warned)
	}
	c.Series = append(c.Series, of("Denied", "bad", func(r *answers.UsageRow) int64 { return r.Denied }))
	return c
}

// levelChart returns the graph of a state over time.
func levelChart(title string, points []point, step time.Duration) *chart {
	return &chart{Title: title, Step: step, Levels: true, Series: []series{{"Used", "accent", points}}}
}

// limit adds the line of a limit; 0: there is none.
func (c *chart) limit(name string, most int64) {
	if most > 0 {
		c.Lines = append(c.Lines, chartLine{"limit " + name, most})
	}
}
