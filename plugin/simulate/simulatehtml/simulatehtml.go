// Package simulatehtml writes the charts of a simulation as one page, which needs no network.
package simulatehtml

import (
	"fmt"
	"html/template"
	"io"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/internal/chart"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/simulate"
)

var page = template.Must(template.New("page").Funcs(template.FuncMap{"counted": counted}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Simulation: {{.About}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1e293b}
svg{width:100%;height:auto}</style>
<h1>{{.About}}</h1>
<p>{{counted .Nodes "node"}}, {{counted (len .Masters) "master"}}, {{counted .Tenants "tenant"}},
{{.Seconds}} s, seed {{.Seed}}.
{{.Admitted}} of {{.Offered}} requests were admitted; an ideal limiter admits {{.Ideal}}.
Above the bound of a limit: {{if .OverTokens}}{{.OverTokens}} tokens at most{{else}}nothing{{end}}.</p>
{{range .Charts}}<h2>{{.Title}}</h2>
{{.Image}}
{{end}}</html>
`))

// counted returns a number of things: 1 node, 2 nodes.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprint(n, " ", thing)
}

type titled struct {
	Title string
	Image template.HTML
}

// Write writes the page of a report.
func Write(to io.Writer, r *simulate.Report) error {
	v := struct {
		*simulate.Report
		Charts []titled
	}{Report: r}
	series := func(name, color string, value func(*simulate.Point) float64) chart.Series {
		s := chart.Series{Name: name, Color: color}
		for i := range r.Timeline {
			s.Values = append(s.Values, value(&r.Timeline[i]))
		}
		return s
	}
	var labels []string
	for i := range r.Timeline {
		labels = append(labels, fmt.Sprintf("%g s", r.Timeline[i].At))
	}
	for _, c := range []struct {
		title  string
		series []chart.Series
	}{
		{"Requests", []chart.Series{
			series("admitted", "#93b5d6", func(p *simulate.Point) float64 { return float64(p.Admitted) }),
			series("denied", "#c8453b", func(p *simulate.Point) float64 {
				return max(float64(p.Offered)-float64(p.Admitted), 0)
			}),
		}},
		{"Redis commands", []chart.Series{
			series("commands", "#7c9a72", func(p *simulate.Point) float64 { return float64(p.RedisOps) }),
		}},
		{"Nodes that decide by fail modes", []chart.Series{
			series("nodes", "#c8453b", func(p *simulate.Point) float64 { return float64(p.Degraded) }),
		}},
	} {
		image, err := chart.Areas(labels, c.series...)
		if err != nil {
			return fmt.Errorf("chart %q: %w", c.title, err)
		}
		v.Charts = append(v.Charts, titled{c.title, image})
	}
	if err := page.Execute(to, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
