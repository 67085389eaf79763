// Package replayhtml renders the report of a replay as one HTML file, for people who decide about limits. The file
// loads nothing from elsewhere.
package replayhtml

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"

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

// maxRows bounds the rows of the page.
const maxRows = 200

// view is what the page shows.
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

// traffic draws the requests over time.
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

// tenants draws the tenants with most denials.
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
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return strings.Join(append([]string{digits}, parts...), "\u202f")
}

// counted returns a number of things.
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

// spanText returns a length of time in words.
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
