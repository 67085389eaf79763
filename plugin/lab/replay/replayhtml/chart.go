package replayhtml

import (
	"fmt"
	"html/template"
	"slices"

	"github.com/go-analyze/charts"
)

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

// style returns the colors of the series of a chart, and their names.
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
