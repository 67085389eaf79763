package replayhtml

import (
	"fmt"
	"html/template"
	"slices"

	"github.com/go-analyze/charts"
)

// series is one series of values with its color, such as #d64545.
type series struct {
	Name   string
	Color  string
	Values []float64
}

// width is the width of all charts, in pixels; pages scale them.
const width = 1000

// areas draws series, as SVG, above each other, over labels such as times.
func areas(labels []string, all ...series) (template.HTML, error) {
	data, theme, legend := parts(all)
	opt := charts.NewLineChartOptionWithData(data)
	opt.Theme, opt.Padding = theme, charts.NewBox(8, 8, 24, 8)
	opt.XAxis.Labels, opt.XAxis.LabelCount = labels, 8
	opt.XAxis.BoundaryGap = charts.Ptr(false)
	opt.YAxis = []charts.YAxisOption{{Min: charts.Ptr(0.0), LabelCount: 5}}
	opt.StackSeries, opt.FillOpacity = charts.Ptr(true), 255
	opt.Symbol = charts.Symbol{Shape: charts.SymbolNone}
	opt.Legend, opt.ValueFormatter = legend, number
	return draw(280, func(p *charts.Painter) error { return p.LineChart(opt) })
}

// bars draws horizontal bars, the first one at the top.
func bars(labels []string, all ...series) (template.HTML, error) {
	data, theme, legend := parts(all)
	labels = slices.Clone(labels)
	for _, list := range data {
		slices.Reverse(list)
	}
	slices.Reverse(labels)
	opt := charts.NewBarChartOptionWithData(data)
	opt.Horizontal = true
	opt.Theme, opt.Padding = theme, charts.NewBox(8, 8, 40, 8)
	opt.CategoryAxis.Labels = labels
	opt.ValueAxis = []charts.ValueAxisOption{{Min: charts.Ptr(0.0)}}
	opt.StackSeries = charts.Ptr(true)
	opt.Legend, opt.ValueFormatter = legend, number
	return draw(90+32*len(labels), func(p *charts.Painter) error { return p.BarChart(opt) })
}

// parts returns copies of the values of series, and the colors and names of a chart.
func parts(all []series) (data [][]float64, _ charts.ColorPalette, _ charts.LegendOption) {
	var colors []charts.Color
	var names []string
	for _, s := range all {
		data, names = append(data, slices.Clone(s.Values)), append(names, s.Name)
		colors = append(colors, charts.ParseColor(s.Color))
	}
	theme := charts.GetTheme(charts.ThemeLight).WithSeriesColors(colors).
		WithTextColor(charts.ParseColor("#475569")).WithBackgroundColor(charts.ColorTransparent)
	return data, theme, charts.LegendOption{
		SeriesNames: names, Show: charts.Ptr(len(all) > 1), Symbol: charts.SymbolSquare,
	}
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
