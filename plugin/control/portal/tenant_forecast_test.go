package portal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/database/rows"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// noon is when the tests of pure functions are.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const daySeconds = 86400 // seconds

func TestAForecastIsWhenNothingIsLeftAtTheSameRate(t *testing.T) {
	t.Parallel()
	type quotaUse struct {
		capacity, used, limit, window int64
		algorithm                     string
		reset                         time.Time
		rate                          float64
	}
	for name, c := range map[string]struct {
		use  quotaUse
		want time.Duration // from noon; 0: it lasts, or is used up already
	}{
		"half is left and a tenth is spent an hour": {
			quotaUse{1000, 500, 1000, daySeconds, "fixed_window", noon.Add(12 * time.Hour), 100.0 / 3600}, 5 * time.Hour,
		},
		"the window ends before": {
			quotaUse{1000, 500, 1000, daySeconds, "fixed_window", noon.Add(4 * time.Hour), 100.0 / 3600}, 0,
		},
		"nothing is spent":      {quotaUse{1000, 500, 1000, daySeconds, "fixed_window", noon.Add(time.Hour), 0}, 0},
		"more is used than all": {quotaUse{1000, 1200, 1000, daySeconds, "fixed_window", noon.Add(time.Hour), 1}, 0},
		"a bucket refills faster than it is spent": {
			quotaUse{2400, 500, 2400, daySeconds, "token_bucket", noon, 99.0 / 3600}, 0,
		},
		"a bucket refills half of what is spent": {
			quotaUse{2400, 1200, 2400, daySeconds, "token_bucket", noon, 200.0 / 3600}, 12 * time.Hour,
		},
		"as much leaves a sliding window as is spent": {
			quotaUse{2400, 2399, 2400, daySeconds, "sliding_window", noon, 99.0 / 3600}, 0,
		},
	} {
		b := answers.BucketUsage{Limit: c.use.capacity, Used: c.use.used, Reset: c.use.reset}
		l := answers.LimitInForce{
			Limit: c.use.limit, Window: schema.Window{WindowSize: c.use.window}, Algorithm: c.use.algorithm,
		}
		at := exhaustedAt(&b, &l, c.use.rate, noon)
		switch {
		case c.want == 0 && !at.IsZero(), c.want > 0 && at.Sub(noon.Add(c.want)).Abs() > time.Second:
			t.Errorf("%s: it is used up at %v, want %v after noon", name, at, c.want)
		}
	}
}

func TestTheRateOfALimitIsThatOfTheRequestsThatItCounts(t *testing.T) {
	t.Parallel()
	limitAt := func(policy, endpoint string, cost int64) answers.LimitInForce {
		return answers.LimitInForce{Policy: policy, Endpoint: endpoint, Scope: "tenant", Cost: cost}
	}
	all := []answers.LimitInForce{
		limitAt("daily", "", 0), limitAt("daily", "POST /bulk", 5), limitAt("other", "GET /a", 0),
	}
	uses := []rows.UsageRow{
		{Endpoint: new("GET /a"), Admitted: 3600}, {Endpoint: new("POST /bulk"), Admitted: 7200}, {Admitted: 1800},
	}
	for i, want := range []float64{1.5, 10, 1} {
		if got := rateOf(&all[i], all, uses, time.Hour); got != want {
			t.Errorf("%s at %q spends %v tokens a second, want %v", all[i].Policy, all[i].Endpoint, got, want)
		}
	}
	if got := rateOf(&all[0], all, uses, 0); got != 0 {
		t.Errorf("in no time it spends %v", got)
	}
}

func TestTheLimitOfAGraphIsTheTightestOfAllRequests(t *testing.T) {
	t.Parallel()
	limit := func(
		name, endpoint string, quantity, window int64, edit ...func(*answers.LimitInForce),
	) answers.LimitInForce {
		l := answers.LimitInForce{
			Policy: name, Mode: "enforce", Scope: "tenant", Endpoint: endpoint, Limit: quantity,
			Window: schema.Window{WindowSize: window},
		}
		for _, e := range edit {
			e(&l)
		}
		return l
	}
	limits := []answers.LimitInForce{
		limit("minute", "", 100, 60), limit("hour", "", 5000, 3600), limit("day", "", 50_000, daySeconds),
		limit("bulk", "POST /bulk", 1, 60), limit("user", "", 1, 60, func(l *answers.LimitInForce) { l.Scope = "user" }),
		limit("shadow", "", 1, 60, func(l *answers.LimitInForce) { l.Mode = "shadow" }),
		limit("tokens", "", 1, 60, func(l *answers.LimitInForce) { l.Settles = true }),
		limit("month", "", 1, 0, func(l *answers.LimitInForce) { l.Period, l.TimeZone = "month", "UTC" }),
		limit("zone", "", 1, 0, func(l *answers.LimitInForce) { l.Period, l.TimeZone = "day", "Europe/Berlin" }),
		limit("calendar", "", 40_000, 0, func(l *answers.LimitInForce) { l.Period, l.TimeZone = "day", "UTC" }),
		limit("costly", "", 60_000, 3600, func(l *answers.LimitInForce) { l.Cost = 10 }),
	}
	for _, c := range []struct {
		step time.Duration
		most int64
		name string
	}{
		{time.Hour, 5000, "hour"}, {24 * time.Hour, 40_000, "calendar"}, {time.Minute, 100, "minute"}, {time.Second, 0, ""},
	} {
		if most, name := limitOfStep(limits, c.step); most != c.most || name != c.name {
			t.Errorf("a step of %v admits %d by %q, want %d by %q", c.step, most, name, c.most, c.name)
		}
	}
}

func TestAGraphHasAPointForEachStep(t *testing.T) {
	t.Parallel()
	h := rows.UsageHistory{From: noon.Add(-3 * time.Hour), To: noon.Add(time.Minute), Items: []rows.UsageRow{
		{At: noon.Add(-2 * time.Hour), Admitted: 5}, {At: noon, Admitted: 7},
	}}
	points := pointsOf(h, time.Hour, func(r *rows.UsageRow) int64 { return r.Admitted })
	want := []point{{h.From, 0}, {h.From.Add(time.Hour), 5}, {noon.Add(-time.Hour), 0}, {noon, 7}}
	require.Equal(t, want, points)
}

func TestEndpointsBeyondTheMostAreSummedUp(t *testing.T) {
	t.Parallel()
	var u orgUsage
	u.sum([]rows.UsageRow{
		{Endpoint: new("a"), Admitted: 1},
		{Endpoint: new("b"), Admitted: 2, Denied: 9},
		{Endpoint: new("a"), Admitted: 3, Soft: 1},
		{Endpoint: new("c"), Admitted: 3},
		{Endpoint: new(""), Denied: 1},
	}, 2)
	if u.Total.Admitted != 9 || u.Total.Denied != 10 || u.Total.Soft != 1 {
		t.Errorf("in all there are %+v", u.Total)
	}
	if len(u.Endpoints) != 2 || u.Endpoints[0].Endpoint != "b" || u.Endpoints[1].Admitted != 4 {
		t.Errorf("the endpoints are %+v, want b and a", u.Endpoints)
	}
	if u.Others != 2 || u.Rest.Admitted != 3 || u.Rest.Denied != 1 {
		t.Errorf("%d others have %+v", u.Others, u.Rest)
	}
}

func TestABucketIsShownWithTheLimitThatItIsOf(t *testing.T) {
	t.Parallel()
	limit := func(policy, scope, endpoint string, row int64) answers.LimitInForce {
		return answers.LimitInForce{Policy: policy, Row: row, Scope: scope, Endpoint: endpoint}
	}
	bucket := func(policy, scope, endpoint string, row int64) answers.BucketUsage {
		return answers.BucketUsage{Policy: policy, Scope: scope, Endpoint: endpoint, Row: row}
	}
	plan := planLimits([]answers.LimitInForce{
		limit("daily", "tenant", "", 0), limit("daily", "tenant", "POST /bulk", 0), limit("daily", "tenant", "", 7),
		limit("routes", "tenant+endpoint", "", 0),
	}, []answers.BucketUsage{
		bucket("daily", "tenant", "", 0), bucket("daily", "tenant", "POST /bulk", 0), bucket("daily", "tenant", "", 7),
		bucket("routes", "tenant+endpoint", "records", 0), bucket("routes", "tenant+endpoint", "search", 0),
	}, new(answers.UsageHistory), noon)
	for i, want := range []int{1, 1, 1, 2} {
		if len(plan[i].Used) != want {
			t.Errorf("%s at %q has %+v, want %d buckets", plan[i].Policy, plan[i].Endpoint, plan[i].Used, want)
		}
	}
}
