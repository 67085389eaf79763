// Package replayhtml renders the report of a replay as one HTML file, for people who decide about limits. The file
// loads nothing from elsewhere.
package replayhtml

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/go-analyze/charts"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/lab/replay"
)

//go:embed report.html.tmpl
var text string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"count": func(n any) string { return grouped(fmt.Sprint(n)) }, "counted": counted, "percent": percentText,
	"time": func(at time.Time) string { return at.UTC().Format("2 Jan 2006, 15:04:05") },
	"span": spanText, "sub": func(a, b int) int { return a - b },
}).Parse(text))

// Source describes what was replayed.
type Source struct {
	Logs     []string
	Config   string
	Policies string // ""; none
}

const maxRows = 200

type view struct {
	*replay.Report
	Source  Source
	Shown   []replay.Row // those with denials, or else the busiest
	Hidden  int          // rows with denials that are not shown
	Share   float64      // percentage of requests that are denied, or would be
	Traffic template.HTML
	Who     template.HTML
}

// Write writes the page of a report.
func Write(to io.Writer, r *replay.Report, source Source) error {
	v := view{Report: r, Source: source, Share: r.DeniedPct + r.ShadowDeniedPct}
	for _, row := range r.Rows {
		switch {
		case row.Denied == 0:
		case len(v.Shown) == maxRows:
			v.Hidden++
		default:
			v.Shown = append(v.Shown, row)
		}
	}
	var err error
	if len(r.Series.Points) > 1 {
		if v.Traffic, err = traffic(r); err != nil {
			return err
		}
	}
	if len(r.Most) > 0 {
		if v.Who, err = tenants(r); err != nil {
			return err
		}
	}
	if err := page.Execute(to, v); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func traffic(r *replay.Report) (template.HTML, error) {
	layout := "15:04:05"
	switch span := r.To.Sub(r.From); {
	case span > 72*time.Hour:
		layout = "2 Jan"
	case span > 24*time.Hour:
		layout = "2 Jan 15:04"
	case span > 20*time.Minute:
		layout = "15:04"
	}
	var c chart
	for _, p := range r.Series.Points {
		c.add(p.From.Format(layout), p.Requests, p.Denied)
	}
	return c.areas()
}

// maxBars bounds the bars of the chart of tenants, and maxLabel the letters of their names.
const (
	maxBars  = 10
	maxLabel = 32
)

func tenants(r *replay.Report) (template.HTML, error) {
	var c chart
	for _, s := range r.Most[:min(len(r.Most), maxBars)] {
		name := []rune(s.Name)
		if len(name) > maxLabel {
			name = append(name[:maxLabel-1], '…')
		}
		c.add(string(name), s.Requests, s.Denied)
	}
	return c.bars()
}

// grouped returns a number with its digits in groups of three.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "\u202f" + digits[i:]
	}
	return digits
}

func counted(n any, one, many string) string {
	if digits := fmt.Sprint(n); digits != "1" {
		return grouped(digits) + " " + many
	}
	return "1 " + one
}

// percentText returns a percentage with the digits that matter.
func percentText(percent float64) string {
	switch {
	case percent == 0:
		return "0 %"
	case percent < 0.001:
		return "under 0.001 %"
	case percent < 10:
		return strconv.FormatFloat(percent, 'g', 2, 64) + " %"
	}
	return strconv.FormatFloat(percent, 'f', 0, 64) + " %"
}

func spanText(seconds int64) string {
	for _, unit := range [...]struct {
		seconds int64
		one     string
	}{{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}} {
		if n := seconds / unit.seconds; n > 0 && seconds%unit.seconds == 0 {
			if n == 1 {
				return "one " + unit.one
			}
			return fmt.Sprintf("%d %ss", n, unit.one)
		}
	}
	return "no time"
}

// chart shows the requests of times or tenants, by their labels.
type chart struct {
	labels           []string
	admitted, denied []float64
}

func (c *chart) add(label string, requests, denied int64) {
	c.labels = append(c.labels, label)
	c.admitted, c.denied = append(c.admitted, float64(requests-denied)), append(c.denied, float64(denied))
}

// width is the width of all charts, in pixels; pages scale them.
const width = 1000

// areas draws the requests, as SVG, above each other.
func (c *chart) areas() (template.HTML, error) {
	opt := charts.NewLineChartOptionWithData([][]float64{c.admitted, c.denied})
	opt.Theme, opt.Legend = style("admitted", "denied")
	opt.Padding = charts.NewBox(8, 8, 24, 8)
	opt.XAxis.Labels, opt.XAxis.LabelCount = c.labels, 8
	opt.XAxis.BoundaryGap = charts.Ptr(false)
	opt.YAxis = []charts.YAxisOption{{Min: charts.Ptr(0.0), LabelCount: 5}}
	opt.StackSeries, opt.FillOpacity = charts.Ptr(true), 255
	opt.Symbol = charts.Symbol{Shape: charts.SymbolNone}
	opt.ValueFormatter = number
	return draw(280, func(p *charts.Painter) error { return p.LineChart(opt) })
}

// bars draws horizontal bars, the first one at the top.
func (c *chart) bars() (template.HTML, error) {
	slices.Reverse(c.labels)
	slices.Reverse(c.admitted)
	slices.Reverse(c.denied)
	opt := charts.NewBarChartOptionWithData([][]float64{c.denied, c.admitted})
	opt.Horizontal = true
	opt.Theme, opt.Legend = style("denied", "admitted")
	opt.Padding = charts.NewBox(8, 8, 40, 8)
	opt.CategoryAxis.Labels = c.labels
	opt.ValueAxis = []charts.ValueAxisOption{{Min: charts.Ptr(0.0)}}
	opt.StackSeries, opt.ValueFormatter = charts.Ptr(true), number
	return draw(90+32*len(c.labels), func(p *charts.Painter) error { return p.BarChart(opt) })
}

func style(names ...string) (charts.ColorPalette, charts.LegendOption) {
	colors := map[string]charts.Color{"admitted": charts.ParseColor("#93b5d6"), "denied": charts.ParseColor("#c8453b")}
	theme := charts.GetTheme(charts.ThemeLight).WithSeriesColors([]charts.Color{colors[names[0]], colors[names[1]]}).
		WithTextColor(charts.ParseColor("#475569")).WithBackgroundColor(charts.ColorTransparent)
	return theme, charts.LegendOption{SeriesNames: names, Show: charts.Ptr(true), Symbol: charts.SymbolSquare}
}

// number returns a number on an axis: 1200, 15k, 2.5M.
func number(n float64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.4gG", n/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.4gM", n/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.4gk", n/1e3)
	}
	return fmt.Sprintf("%.4g", n)
}

// draw returns a chart as SVG. The library escapes the texts in it.
func draw(height int, paint func(*charts.Painter) error) (template.HTML, error) {
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height})
	if err := paint(p); err != nil {
		return "", fmt.Errorf("draw a chart: %w", err)
	}
	svg, err := p.Bytes()
	if err != nil {
		return "", fmt.Errorf("draw a chart: %w", err)
	}
	return template.HTML(svg), nil // made by the library, which escapes texts
}
