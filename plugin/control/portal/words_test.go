package portal

import (
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
)

func TestLimitsAreDescribedInPlainWords(t *testing.T) {
	for want, l := range map[string]answers.LimitInForce{
		"1,000 requests per minute, shared by all users of acme, in whole minutes UTC": {
			Limit: 1000, Burst: 1000, WindowSize: 60, Scope: "tenant", Algorithm: "fixed_window",
		},
		"1 request per second, for each user of acme, refilled evenly, at most 5 at once": {
			Limit: 1, Burst: 5, WindowSize: 1, Scope: "user", Algorithm: "token_bucket",
		},
		"10 requests per 10 minutes to POST /records, for each endpoint, shared by all users of acme, " +
			"in steps of 10 minutes UTC": {
			Limit: 10, Burst: 10, WindowSize: 600, Scope: "tenant+endpoint", Algorithm: "fixed_window",
			Endpoint: "POST /records",
		},
		"1,000,000 tokens per 7 days, shared by all users of acme, in about the last 7 days": {
			Limit: 1_000_000, Burst: 1_000_000, WindowSize: 604800, Scope: "tenant", Algorithm: "sliding_window",
			Settles: true,
		},
		"500 tokens per day, for each credential of acme, in any day, of which a request spends 5": {
			Limit: 500, Burst: 500, WindowSize: 86400, Scope: "credential", Algorithm: "sliding_log", Cost: 5,
		},
		"60 requests per 90 seconds, shared by all tenants, evenly spaced, at most 1 at once": {
			Limit: 60, Burst: 1, WindowSize: 90, Scope: "global", Algorithm: "leaky_bucket", Cost: 1,
		},
	} {
		if got := limitWords(&l, "acme"); got != want {
			t.Errorf("%+v is\n%q, want\n%q", l, got, want)
		}
	}
	const own = "2 requests per hour, for each user of your organization, refilled evenly"
	perUser := answers.LimitInForce{Limit: 2, Burst: 2, WindowSize: 3600, Scope: "user", Algorithm: "token_bucket"}
	if got := limitWords(&perUser, ""); got != own {
		t.Errorf("without a name the limit is %q, want %q", got, own)
	}
}

func TestNumbersHaveThousandsSeparators(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", -999: "-999", 1234567: "1,234,567",
		-9223372036854775808: "-9,223,372,036,854,775,808",
	} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func TestTimesAreReadFromNow(t *testing.T) {
	now := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC) // a Wednesday
	for _, c := range []struct {
		at              time.Time
		relative, clock string
	}{
		{time.Time{}, "", ""},
		{now, "now", "10:00 UTC"},
		{now.Add(time.Second), "in 1 second", "10:00 UTC"},
		{now.Add(-59 * time.Second), "59 seconds ago", "09:59 UTC"},
		{now.Add(3 * time.Minute), "in 3 minutes", "10:03 UTC"},
		{now.Add(-2 * time.Hour), "2 hours ago", "08:00 UTC"},
		{now.Add(52 * time.Hour), "in 2 days", "Fri 14:00 UTC"},
		{now.Add(-11 * time.Hour), "11 hours ago", "Tue 23:00 UTC"},
		{now.AddDate(0, 0, 6), "in 6 days", "1 Dec 2026 10:00 UTC"},
		{now.Add(-400 * 24 * time.Hour).In(time.FixedZone("", 7200)), "400 days ago", "21 Oct 2025 10:00 UTC"},
	} {
		if got := relativeTime(c.at, now); got != c.relative {
			t.Errorf("%v is %q, want %q", c.at, got, c.relative)
		}
		if got := clockTime(c.at, now); got != c.clock {
			t.Errorf("%v is %q, want %q", c.at, got, c.clock)
		}
	}
}
