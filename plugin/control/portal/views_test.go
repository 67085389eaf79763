package portal

import (
	"encoding/json"
	"html/template"
	"slices"
	"testing"
	"time"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/control/answers"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// over returns a window of so many seconds.
func over(seconds int64) schema.Window { return schema.Window{WindowSize: seconds} }

func TestLimitsAreDescribedInPlainWords(t *testing.T) {
	for want, l := range map[string]answers.LimitInForce{
		"1,000 requests per minute, shared by all users of acme, in whole minutes UTC": {
			Limit: 1000, Burst: 1000, Window: over(60), Scope: "tenant", Algorithm: "fixed_window",
		},
		"1 request per second, for each user of acme, refilled evenly, at most 5 at once": {
			Limit: 1, Burst: 5, Window: over(1), Scope: "user", Algorithm: "token_bucket",
		},
		"10 requests per 10 minutes to POST /records, for each endpoint, shared by all users of acme, " +
			"in steps of 10 minutes UTC": {
			Limit: 10, Burst: 10, Window: over(600), Scope: "tenant+endpoint", Algorithm: "fixed_window",
			Endpoint: "POST /records",
		},
		"1,000,000 tokens per 7 days, shared by all users of acme, in about the last 7 days": {
			Limit: 1_000_000, Burst: 1_000_000, Window: over(604800), Scope: "tenant", Algorithm: "sliding_window",
			Settles: true,
		},
		"500 tokens per day, for each credential of acme, in any day, of which a request spends 5": {
			Limit: 500, Burst: 500, Window: over(86400), Scope: "credential", Algorithm: "sliding_log", Cost: 5,
		},
		"10,000 requests per month (Europe/Berlin), shared by all users of acme, by the calendar": {
			Limit: 10000, Burst: 10000, Scope: "tenant", Algorithm: "fixed_window",
			Window: schema.Window{Period: "month", TimeZone: "Europe/Berlin"},
		},
		"10 requests at once to POST /exports, for each user of acme, each for at most 10 minutes": {
			Limit: 10, Burst: 10, Scope: "user", Algorithm: "concurrency", Endpoint: "POST /exports",
			Window: schema.Window{MaxDuration: 600},
		},
		"60 requests per 90 seconds, shared by all tenants, evenly spaced, at most 1 at once": {
			Limit: 60, Burst: 1, Window: over(90), Scope: "global", Algorithm: "leaky_bucket", Cost: 1,
		},
	} {
		if got := limitWords(&l, "acme"); got != want {
			t.Errorf("%+v is\n%q, want\n%q", l, got, want)
		}
	}
	const own = "2 requests per hour, for each user of your organization, refilled evenly"
	perUser := answers.LimitInForce{Limit: 2, Burst: 2, Window: over(3600), Scope: "user", Algorithm: "token_bucket"}
	if got := limitWords(&perUser, ""); got != own {
		t.Errorf("without a name the limit is %q, want %q", got, own)
	}
}

func TestNumbersHaveSeparatorsAndTimesTheirZone(t *testing.T) {
	at := time.Date(2026, 11, 22, 23, 5, 9, 0, time.FixedZone("", 3600))
	const shown = `<time datetime="2026-11-22T22:05:09Z">2026-11-22 22:05:09 UTC</time>`
	for in, want := range map[any]template.HTML{at: shown, &at: shown, (*time.Time)(nil): "–", time.Time{}: "–"} {
		if got, err := when(in); err != nil || got != want {
			t.Errorf("%v is shown as %s (%v), want %s", in, got, err, want)
		}
	}
	for in, want := range map[any]string{0: "0", -1000: "-1,000", int64(1234567): "1,234,567", new(1000): "1,000"} {
		if got, err := number(in); err != nil || got != want {
			t.Errorf("%v is shown as %s (%v), want %s", in, got, err, want)
		}
	}
	if got := percent(0.12345); got != "12.3 %" {
		t.Errorf("the share is %s", got)
	}
}

func TestDiffsHaveEachFieldThatDiffers(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		want          []fieldChange
	}{
		"a row is created": {"", `{"name":"daily","limit":1000}`, []fieldChange{
			{"limit", "", "1000", "added"}, {"name", "", "daily", "added"},
		}},
		"a row is deleted": {`{"name":"daily","tier":null}`, `null`, []fieldChange{{"name", "daily", "", "removed"}}},
		"fields of a row change": {
			`{"limit":9007199254740993,"mode":"shadow","settle":{"reserve":1},"a":true,"list":[1,"x"]}`,
			`{"limit":9007199254740992,"mode":"shadow","settle":{"reserve":2,"from":"y"},"a":true,"list":[1,"y"]}`,
			[]fieldChange{
				{"limit", "9007199254740993", "9007199254740992", "changed"},
				{"list", `[1,"x"]`, `[1,"y"]`, "changed"},
				{"settle.from", "", "y", "added"},
				{"settle.reserve", "1", "2", "changed"},
			},
		},
		"nothing changes": {`{"a":{"b":[{}]}}`, `{"a":{"b":[{}]}}`, nil},
	} {
		got, err := diffJSON(json.RawMessage(c.before), json.RawMessage(c.after))
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v (%v), want %+v", name, got, err, c.want)
		}
	}
}
