package portal

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/api"
)

var chartBegin = time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)

// hourly returns values an hour apart.
func hourly(values ...int64) []point {
	points := make([]point, len(values))
	for i, v := range values {
		points[i] = point{chartBegin.Add(time.Duration(i) * time.Hour), v}
	}
	return points
}

// chartOf renders a chart.
func chartOf(t *testing.T, c chart) string {
	t.Helper()
	html, err := open(t).portal.fragment("chart", c)
	require.NoError(t, err)
	return string(html)
}

func TestAChartIsATableWithAllThatTheScriptDraws(t *testing.T) {
	const evil = `<script>alert(1)</script>`
	html := chartOf(t, chart{
		Title: "Requests " + evil, Step: time.Hour,
		Series: []series{{"Admitted", "accent", hourly(1, 20, 3)}, {evil, "bad", hourly(4, 5, math.MaxInt64)}},
		Lines:  []chartLine{{"limit " + evil, 200}}, Bands: []chartBand{{evil, chartBegin, time.Time{}}},
		Marks: []chartMark{{evil, chartBegin}},
	})
	assert.NotContains(t, html, "<script")
	for _, part := range []string{
		`data-step="3600"`, `data-line="200"`, `data-value="20"`, `data-value="9223372036854775807"`, "per hour",
		`<time datetime="2026-11-22T01:00:00Z"`, fmt.Sprintf(`data-from="%d">`, chartBegin.Unix()),
		fmt.Sprintf(`data-mark="%d"`, chartBegin.Unix()), "1 change of limits",
		"From 22 Nov 2026 00:00 UTC to 22 Nov 2026 03:00 UTC; Admitted: the highest is 20 at 22 Nov 2026 01:00 UTC;",
	} {
		assert.Contains(t, html, part)
	}
	assert.Contains(t, chartOf(t, *levelChart("Used", nil, time.Hour)), "There are no values.")
	level := levelChart("Used", hourly(1, 100), time.Hour)
	level.limit("daily", 200)
	assert.Contains(t, level.Summary(), "50 % of the limit")
}

func TestWarningsAreAPartOfAdmittedRequests(t *testing.T) {
	h := answers.UsageHistory{From: chartBegin, To: chartBegin.Add(30 * time.Minute), Items: []answers.UsageRow{
		{At: chartBegin, Admitted: 10, Soft: 4, Denied: 1}, {At: chartBegin.Add(14 * time.Minute), Admitted: 1},
	}}
	c := requestsChart(&h, 15*time.Minute)
	require.Len(t, c.Series, 3)
	assert.Equal(t, []chartRow{
		{chartBegin, []int64{7, 4, 1}}, {chartBegin.Add(15 * time.Minute), []int64{0, 0, 0}},
	}, c.Rows())
	h.Items[0].Soft = 0
	assert.Len(t, requestsChart(&h, time.Hour).Series, 2, "without warnings they have no place")
}

func TestAWindowLongerThanTheRangeIsReadFromItsBegin(t *testing.T) {
	hour := ranges[0]
	for _, c := range []struct {
		window time.Duration
		step   string
		bucket time.Duration
	}{{time.Hour, "1m", time.Minute}, {day, "1h", time.Hour}, {365 * day, "1d", day}} {
		got := hour.reaching(c.window)
		assert.Equal(t, c.step, got.Step, c.window)
		assert.Equal(t, c.bucket, got.bucket, c.window)
		steps := noon.Sub(got.from(noon)) / map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "1d": day}[got.Step]
		assert.Less(t, int(steps), 1500, c.window)
		assert.GreaterOrEqual(t, noon.Sub(got.from(noon)), c.window)
	}
}

func TestAWindowBeginsWhereItsLimitBeginsToCount(t *testing.T) {
	for _, c := range []struct {
		window    answers.Window
		fixed     bool
		at, begin string
	}{
		{answers.Window{WindowSize: 86400}, false, "2026-11-22T12:00:00Z", "2026-11-21T12:00:00Z"},
		{answers.Window{WindowSize: 86400}, true, "2026-11-22T12:00:00Z", "2026-11-22T00:00:00Z"},
		{answers.Window{Period: "month", TimeZone: "UTC"}, true, "2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"},
		{answers.Window{Period: "month", TimeZone: "Europe/Berlin"}, true, "2026-11-22T12:00:00Z", "2026-10-31T23:00:00Z"},
		{answers.Window{Period: "day", TimeZone: "Europe/Berlin"}, true, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z"},
		{answers.Window{Period: "day", TimeZone: "Europe/Berlin"}, true, "2026-10-26T12:00:00Z", "2026-10-25T23:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		require.NoError(t, err)
		got := beginOf(c.window, c.fixed)(at)
		assert.Equal(t, c.begin, got.Add(time.Microsecond).UTC().Truncate(time.Second).Format(time.RFC3339), "%+v", c)
	}
}

func TestAGraphOfAWindowDropsWhatTheWindowNoLongerHas(t *testing.T) {
	points := hourly(1, 2, 4, 8, 16)
	hours := answers.Window{WindowSize: 2 * 3600}
	for _, c := range []struct {
		fixed bool
		want  []int64
	}{
		{false, []int64{1, 3, 6, 12, 24}}, // each hour and the one before
		{true, []int64{1, 3, 4, 12, 16}},  // of every second hour on
	} {
		var sums []int64
		for i, p := range windowSums(points, beginOf(hours, c.fixed)) {
			assert.Equal(t, points[i].At, p.At)
			sums = append(sums, p.Value)
		}
		assert.Equal(t, c.want, sums, "fixed: %t", c.fixed)
	}
}

func TestTheRangeStaysInAllAddressesOfTheConsole(t *testing.T) {
	page := keepRange(`<a class="b" href="/portal/top#x">1</a><a href="/portal/t?a=b&amp;c=d">2</a>`+
		`<a href="/portal/?range=1h">3</a><a href="https://example.org/portal/">4</a><link href="/portal/assets/x.css">`+
		`<form method="get" action="/portal/t"><form method="post" action="/portal/w">&lt;a href=&#34;/portal/x`, "range=7d")
	assert.Equal(t, `<a class="b" href="/portal/top?range=7d#x">1</a><a href="/portal/t?a=b&amp;c=d&amp;range=7d">2</a>`+
		`<a href="/portal/?range=1h">3</a><a href="https://example.org/portal/">4</a><link href="/portal/assets/x.css">`+
		`<form method="get" action="/portal/t?range=7d"><input type="hidden" name="range" value="7d">`+
		`<form method="post" action="/portal/w?range=7d">&lt;a href=&#34;/portal/x`, page)
	assert.Equal(t, "/portal/x?a=b&range=7d#c", withRange("/portal/x?a=b#c", "range=7d", "&"))
	for query, want := range map[string]string{"range=7d": "range=7d", "range=24h": "", "": "", `range="><b>`: ""} {
		r := httptest.NewRequest(http.MethodGet, "/portal/?"+strings.ReplaceAll(query, `"><b>`, "%22%3E%3Cb%3E"), nil)
		assert.Equal(t, want, keptRange(r, api.Caller{Role: api.Viewer}), query)
		assert.Empty(t, keptRange(r, api.Caller{Role: api.Tenant}))
	}
}

func TestTimesAreRelativeToNow(t *testing.T) {
	for away, want := range map[time.Duration]string{
		12*time.Minute + 59*time.Second: ">in 12 min<", -3 * time.Hour: ">3 h ago<", 0: ">now<", 50 * time.Hour: ">in 2 d<",
	} {
		got, err := relative(noon.Add(away), noon, time.UTC)
		require.NoError(t, err)
		assert.Contains(t, string(got), want)
		assert.Contains(t, string(got), noon.Add(away).Format(`title="2006-01-02 15:04:05 UTC"`))
	}
	got, err := relative(time.Time{}, noon, time.UTC)
	assert.Equal(t, "–", string(got))
	assert.NoError(t, err)
}
