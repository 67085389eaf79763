package quota_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/promtest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/leader/quota"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/observe/metrics"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// The rate of a day's quota is that of the last hour, to the minute.
func TestANoticeForecastsWhenAQuotaIsExhausted(t *testing.T) {
	const hour = time.Hour
	type spends = map[time.Duration]int64 // tokens, by when they were reported
	for name, c := range map[string]struct {
		limit schema.Limit
		spent spends
		after time.Duration // from noon; 0: there is no forecast
	}{
		"50 tokens in an hour, and 50 are left":       {daily(100), spends{hour / 2: 20, hour / 4: 30}, hour},
		"of 60 tokens 20 were spent before this hour": {daily(100), spends{2 * hour: 20, hour / 2: 40}, hour},
		"after the end of the window":                 {daily(1000), spends{2 * hour: 480, hour / 2: 20}, 0},
		"nothing in the last hour":                    {daily(100), spends{2 * hour: 60}, 0},
		"nothing is left":                             {daily(100), spends{0: 100}, 0},
		"a bucket refills 24 of 48 tokens an hour":    {bucket(), spends{2 * hour: 300, hour / 2: 48}, 228 * hour / 24},
		"a bucket refills faster":                     {bucket(), spends{2 * hour: 300, hour / 2: 20}, 0},
		"requests are denied above 160 %":             {above(), spends{2 * hour: 10, hour / 2: 50}, 2 * hour},
		"a limit of one endpoint":                     {elsewhere(), spends{hour / 2: 60}, hour * 40 / 60},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.limit)
			for ago, tokens := range c.spent {
				w.spend("acme", "POST /a", tokens, ago)
			}
			_, err := w.lead(true)
			require.NoError(t, err)
			at := w.event().ExhaustedAt
			switch {
			case c.after == 0 && at != nil:
				t.Errorf("the forecast is %v, want none", at)
			case c.after > 0 && at == nil:
				t.Error("there is no forecast")
			case c.after > 0:
				// The hour begins with a whole minute: the rate is that of up to 61 minutes, and up to a sixtieth too low.
				// What a bucket refills is half of it, which doubles the error.
				least, most := noon.Add(c.after-time.Second), noon.Add(c.after*60/57+time.Minute)
				if at.Before(least) || at.After(most) {
					t.Errorf("the forecast is %v, want %v to %v", at, least, most)
				}
			}
		})
	}
}

// bucket returns a token bucket that refills 24 tokens an hour.
func bucket() schema.Limit {
	return schema.Limit{Name: "daily", Scope: "tenant", Limit: 24 * 24, WindowSize: 86400}
}

// above returns a limit that denies above 160 % of it.
func above() schema.Limit {
	return daily(100, func(l *schema.Limit) { l.SoftThresholdPct, l.HardThresholdPct = 100, 160 })
}

// elsewhere returns a limit of one endpoint.
func elsewhere() schema.Limit { return daily(100, func(l *schema.Limit) { l.Endpoint = "POST /a" }) }

func TestNoticesAreCountedByThreshold(t *testing.T) {
	w := newWorld(t, daily(100))
	w.spend("acme", "a", 80, 0)
	w.spend("globex", "a", 90, 0)
	w.spend("initech", "a", 50, 0)
	_, err := w.lead(true)
	require.NoError(t, err)
	values := promtest.CheckPublished(t, "testdata/metrics.golden", metrics.Read(w.watcher.Stats))
	promtest.WantValues(t, values, "rate_limiter_quota_notices_total ", map[string]float64{"100": 0, "50": 1, "80": 2})
	if at := values["rate_limiter_quota_checked_timestamp_seconds"]; at < float64(time.Now().Add(-time.Hour).Unix()) {
		t.Errorf("the time of the check is %v", at)
	}
}

func TestNoticesHaveThePublishedForm(t *testing.T) {
	published, err := jsonschema.NewCompiler().Compile("../../../schema/quota_threshold.schema.json")
	require.NoError(t, err)
	at := noon.Add(time.Hour)
	full := quota.Notice{
		Version: 1, Tenant: "=cmd,\"b\"\n", Policy: "daily", Endpoint: "POST /a/{id}", Threshold: 80, Limit: 100, Used: 85,
		WindowStart: noon, WindowEnd: noon.AddDate(0, 0, 1), ExhaustedAt: &at, Late: true,
		Period: "month", TimeZone: "Europe/Berlin",
	}
	w := newWorld(t, daily(100), schema.Limit{Name: "each", Scope: "tenant+endpoint", Limit: 100, WindowSize: 3600})
	w.spend("acme", "a", 80, 0)
	_, err = w.lead(true)
	require.NoError(t, err)
	for _, n := range append(w.events, full) {
		text, err := json.Marshal(n)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
		if err == nil {
			err = published.Validate(value)
		}
		assert.NoError(t, err, "%s", text)
	}
	assert.Len(t, w.events, 2)
}

func TestTheIDOfANoticeNamesItsTenantPolicyEndpointWindowAndThreshold(t *testing.T) {
	n := quota.Notice{Tenant: "acme", Policy: "daily", Threshold: 80, Limit: 100, Used: 85, WindowStart: noon}
	ids := map[string]bool{n.ID(): true}
	for _, change := range []func(*quota.Notice){
		func(n *quota.Notice) { n.Tenant = "globex" },
		func(n *quota.Notice) { n.Policy = "hourly" },
		func(n *quota.Notice) { n.Endpoint = "a" },
		func(n *quota.Notice) { n.WindowStart = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.WindowEnd = noon.Add(time.Hour) },
		func(n *quota.Notice) { n.Threshold = 100 },
	} {
		other := n
		change(&other)
		ids[other.ID()] = true
	}
	same := n
	same.Used, same.Limit, same.Late = 99, 110, true
	if len(ids) != 7 || same.ID() != n.ID() {
		t.Errorf("the ids are %v and %s", ids, same.ID())
	}
}
