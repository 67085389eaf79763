package portal

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
)

const day = 24 * time.Hour

// period is a time that a page shows.
type period struct {
	Name, Label string
	Step        string // of the API, by which the page reads; "": the page has no graph
	length      time.Duration
	bucket      time.Duration // what a bar of the graph covers, in whole steps
}

// from returns the begin of the period's first bar, so that the last one is the current.
func (p *period) from(now time.Time) time.Time {
	return now.UTC().Truncate(p.bucket).Add(p.bucket - p.length)
}

// reaching returns the period with as much time before it, in steps of which the API returns as many.
func (p period) reaching(before time.Duration) period {
	p.length += before
	switch {
	case p.length > 60*day:
		p.Step, p.bucket = "1d", day
	case p.length > day && p.Step == "1m":
		p.Step, p.bucket = "1h", max(p.bucket, time.Hour)
	}
	p.length += p.bucket // of the first bar a part may be missing
	return p
}

// Periods of the pages of tenants, and of denials.
var (
	usageSpans = []period{
		{"today", "Today", "1h", day, time.Hour},
		{"7d", "7 days", "1d", 7 * day, day},
		{"30d", "30 days", "1d", 30 * day, day},
	}
	denialSpans = []period{{Name: "24h", Label: "24 hours"}, {Name: "1h", Label: "1 hour"}, {Name: "7d", Label: "7 days"}}
)

// periodNamed returns the period of a name, or the one at an index.
func periodNamed(list []period, name string, otherwise int) period {
	if at := slices.IndexFunc(list, func(p period) bool { return p.Name == name }); at >= 0 {
		return list[at]
	}
	return list[otherwise]
}

// history reads what an org used from a time until now, in steps of the API. more is the rest of the query.
func (v *visit) history(
	org string, from time.Time, step string, more url.Values,
) (found answers.UsageHistory, err error) {
	query := url.Values{"from": {from.UTC().Format(time.RFC3339)}, "step": {step}}
	maps.Copy(query, more)
	return found, v.get(orgAPI(org, "/ratelimit/usage/history"), query, &found)
}

// historyByEndpoint reads the history of the caller's org by endpoint. If an answer has no room for all, it has none.
func (v *visit) historyByEndpoint(from time.Time, step string) (answers.UsageHistory, error) {
	found, err := v.history(v.caller.Org, from, step, url.Values{"group_by": {"endpoint"}})
	if isStatus(err, http.StatusUnprocessableEntity) {
		return v.history(v.caller.Org, from, step, nil)
	}
	return found, err
}

// pointsOf returns a value for each step of a history, or for each of several together; one without a row has 0.
func pointsOf(h answers.UsageHistory, step time.Duration, value func(*answers.UsageRow) int64) []point {
	byTime := map[int64]int64{}
	for i := range h.Items {
		byTime[h.Items[i].At.UTC().Truncate(step).Unix()] += value(&h.Items[i])
	}
	var points []point
	for at := h.From.UTC().Truncate(step); at.Before(h.To); at = at.Add(step) {
		points = append(points, point{At: at, Value: byTime[at.Unix()]})
	}
	return points
}

// beginOf returns when the window of a limit began that has an instant, exclusive: the last window if windows slide.
func beginOf(w answers.Window, fixed bool) func(at time.Time) time.Time {
	window, anchor := time.Duration(w.Seconds())*time.Second, calendar.Anchor{}
	if a := w.Anchor; a != nil {
		anchor = calendar.Anchor{Month: int(a.Month), Day: int(a.Day), Hour: int(a.Hour)}
	}
	period, _ := calendar.ParsePeriod(w.Period) // New says if there is none
	by, err := calendar.New(period, anchor, w.TimeZone)
	return func(at time.Time) time.Time {
		switch {
		case err == nil:
			start, _ := by.Window(at.UnixMicro())
			return time.UnixMicro(start - 1)
		case fixed:
			return at.Truncate(window).Add(-1)
		}
		return at.Add(-window)
	}
}

// windowSums returns what was used of a window at each point, given since when its window counts, exclusive. Steps
// before the first point are missing in the first sums.
func windowSums(points []point, beginOf func(at time.Time) time.Time) []point {
	sums := make([]point, len(points))
	var sum int64
	first := 0 // the first point that sum has
	for i, p := range points {
		sum += p.Value
		for begin := beginOf(p.At); !points[first].At.After(begin); first++ {
			sum -= points[first].Value
		}
		sums[i] = point{p.At, sum}
	}
	return sums
}
