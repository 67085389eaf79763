package response_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/internal/policytest"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/calendar"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/decision"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

func TestRetryAfterIsRoundedUpAndNeverZero(t *testing.T) {
	for wait, want := range map[limit.Micros]string{
		1:                          "1",
		20_000:                     "1",
		1_000_000:                  "1",
		1_000_001:                  "2",
		59_999_999:                 "60",
		86_400 * second:            "86400",
		limit.MaxProduct:           "4503599628",
		limit.Never:                "",
		366*86_400*second - second: "31622399",
	} {
		given := answers{status(0, 2*second, wait)}
		if got := render(schema.Config{}, decide(t, given), false).Get("Retry-After"); got != want {
			t.Errorf("a wait of %d µs is Retry-After %q, want %q", wait, got, want)
		}
	}
}

func TestADenialByAConcurrencyLimitSaysHowManyAtOnceAndSpreadsRetries(t *testing.T) {
	for quantity, words := range map[int64]string{1: "1 request at once", 10: "10 requests at once"} {
		l, err := limit.New(limit.Spec{Algorithm: limit.Concurrency, Quantity: quantity, Window: 60 * second})
		require.NoError(t, err)
		d := decide(t, answers{status(0, 5*second, 5*second)})
		p := *d.Resolution.Bounds[0].Policy
		p.Limit = l
		d.Resolution.Bounds[0].Policy = &p
		var r response.Response
		response.New(schema.Config{}.WithDefaults(), func(n int64) int64 {
			assert.EqualValues(t, 6, n, "jitter is at most the estimate")
			return n - 1
		}).Render(d, false, &r)
		assert.Contains(t, string(r.Body), "Limit 'burst' allows "+words+", counted per tenant. Try again in 10 s.")
	}
}

func TestJitterIsAddedToRetryAfterAloneAndWithinItsBound(t *testing.T) {
	const jitterMax = 30
	bounds := []int64{}
	for _, drawn := range []int64{0, 7, jitterMax} {
		re := response.New(schema.Config{RetryAfterJitterMax: jitterMax}.WithDefaults(), func(n int64) int64 {
			bounds = append(bounds, n)
			return drawn
		})
		var r response.Response
		re.Render(decide(t, denies), false, &r)
		assert.Equal(t, strconv.FormatInt(1+drawn, 10), r.Get("Retry-After"), "Retry-After")
		got, want := r.Get("RateLimit"), `"burst";r=0;t=1`
		assert.True(t, got == want, "RateLimit is %s, want %s whatever the jitter", got, want)
		re.Render(decide(t, roomy), false, &r)
	}
	for _, n := range bounds {
		assert.EqualValues(t, jitterMax+1, n, "jitter got the bound")
	}
	assert.Len(t, bounds, 3, "jitter was called %d times for three denials", len(bounds))
}

// FuzzADenialIsTheJSONOfItsTexts compares the document, which is written without an encoder, with encoding/json.
func FuzzADenialIsTheJSONOfItsTexts(f *testing.F) {
	for _, text := range []string{
		"Protects the import.", `Protects the "nightly" C:\import\`, "<b>é\u2028&</b>", "\x00\r\n\xff\x7f", "\\u0022", `\"`,
	} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, message, description string) {
		config := schema.Config{ErrorMessage: message}
		list := []schema.Limit{{Name: "burst", Scope: "tenant", Limit: 50, WindowSize: 1, Description: description}}
		if (schema.Config{Tiers: []schema.Tier{{Name: "one", Limits: list}}}).Validate() != nil {
			description = ""
		}
		var r response.Response
		response.New(config, nil).Render(described(decide(t, denies), description), false, &r)
		var p problem
		require.NoError(t, json.Unmarshal(r.Body, &p), "%q is not JSON", r.Body)
		// With U+FFFD for each byte that is no text.
		assert.Equal(t, string([]rune(message)), p.Message, "message %q became", message)
		readable := string([]rune(description))
		assert.True(t, strings.HasSuffix(p.Detail, readable), "description %q became %q", description, p.Detail)
	})
}

func TestAGRPCMessageIsPercentEncoded(t *testing.T) {
	config := schema.Config{ErrorMessage: "100% of \"é\"\r\n~"}
	got := render(config, decide(t, denies), true)
	assert.Equal(t, `100%25 of "%C3%A9"%0D%0A~`, got.Get("grpc-message"), "grpc-message")
}

func TestOnlyADenialIsTimedByItsWait(t *testing.T) {
	tests := []struct {
		name  string
		given answers
		want  string
	}{
		{"allowed: until all of it is there", roomy, `"burst";r=98;t=2`},
		{"full already", answers{status(100, 0, 0)}, `"burst";r=100;t=0`},
		{"denied: until there is enough", answers{status(0, 90*second, 2_500_000)}, `"burst";r=0;t=3`},
		{"denied for ever", answers{status(40, 5*second, limit.Never)}, `"burst";r=40;t=5`},
	}
	binding := schema.Config{RateLimitHeader: schema.ListBinding}
	for _, test := range tests {
		assert.Equal(t, test.want, render(binding, decide(t, test.given), false).Get("RateLimit"), "%s: RateLimit", test.name)
	}
}

func TestAppendingToAHeadersValueLeavesTheNextOneAlone(t *testing.T) {
	var r response.Response
	for range 2 { // the second time all values are in one array
		renderer(schema.Config{}).Render(decide(t, roomy), false, &r)
	}
	want := show(&r)
	for _, h := range r.Headers {
		_ = append(h.Value, "!"...)
	}
	got := show(&r)
	assert.True(t, got == want, "headers are\n%s\nwant\n%s", got, want)
}

func TestClientsReadEveryFieldOfAPolicy(t *testing.T) {
	policytest.WantShown(t, "usage.go or problem.go", map[string]string{
		"fail_mode": "it matters while Redis is unavailable, which the golden files of store_away show",
		"accuracy":  "nodes count by it, and clients read the same numbers",
		"fair":      "clients read no shares, only that one is used: the golden files of share_used",
	}, func(p schema.Policy) (text string) {
		for _, quarters := range []int64{3, 4} {
			d := spent(t, p, quarters)
			config := schema.Config{ShowCost: true, KongHeaders: true, ShowSharedLimits: true}
			usage := response.NewUsage(d, "")
			body, err := json.Marshal(usage)
			require.NoError(t, err)
			text += show(render(config, d, false)) + string(body)
		}
		return text
	})
}

// monthly changes the first limit of a decision to 9 per month of Berlin, and the store's clock to an instant.
func monthly(t *testing.T, d *decision.Decision, at time.Time) *decision.Decision {
	t.Helper()
	month, err := calendar.New(calendar.Month, calendar.Anchor{}, "Europe/Berlin")
	require.NoError(t, err)
	p := *d.Resolution.Bounds[0].Policy
	p.Limit, err = limit.New(limit.Spec{Algorithm: limit.FixedWindow, Quantity: 9, Calendar: month})
	require.NoError(t, err)
	p.Name, p.Quota = "monthly", `"monthly";q=9;w=`
	d.Resolution.Bounds[0].Policy, d.Statuses[0].Now = &p, limit.Micros(at.UnixMicro())
	return d
}

func TestTheWindowOfAMonthlyLimitIsThePresentMonth(t *testing.T) {
	for at, want := range map[string]int{
		"2026-10-31": 31*86400 + 3600, "2026-11-01": 30 * 86400,
		"1970-01-01": 31*86400 + 3*3600, // no store has answered: the longest month
	} {
		noon, err := time.Parse(time.DateOnly, at)
		require.NoError(t, err)
		d := monthly(t, decide(t, roomy), noon)
		policies := render(schema.Config{}, d, false).Get("RateLimit-Policy")
		assert.Contains(t, policies, `"monthly";q=9;w=`+strconv.Itoa(want)+",", at)
	}
}

func TestTheWindowOfALimitThatNoStoreHasAnsweredForIsThatOfTheDenial(t *testing.T) {
	d := monthly(t, decide(t, answers{{}, status(0, 2*second, 20_000)}), time.Unix(0, 0))
	d.Statuses[1].Now = limit.Micros(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC).UnixMicro())
	policies := render(schema.Config{}, d, false).Get("RateLimit-Policy")
	assert.Contains(t, policies, `"monthly";q=9;w=2592000,`)
}

func TestADenialByAMonthlyLimitNamesTheMonthAndItsZone(t *testing.T) {
	d := monthly(t, decide(t, answers{status(0, 2*second, 20_000)}), time.Unix(1_790_000_000, 0))
	r := render(schema.Config{}, d, false)
	assert.Contains(t, string(r.Body), "Limit 'monthly' allows 9 per month (Europe/Berlin), counted per ")
}

// spent returns the decision of a request by p alone, some quarters of which are spent.
func spent(t *testing.T, p schema.Policy, quarters int64) *decision.Decision {
	t.Helper()
	plan, id := policytest.Resolve(t, p)
	d := new(decision.Decision)
	d.Reset()
	d.Identity = id
	plan.ResolveAt(&d.Identity, now, &d.Resolution)
	d.Grow()
	for i := range d.Resolution.Bounds {
		b, state := &d.Resolution.Bounds[i], limit.State{}
		b.Policy.Limit.Advance(&state, now)
		b.Policy.Limit.Spend(&state, now, b.Policy.Limit.Capacity()*quarters/4)
		d.Statuses[i] = decision.Status{
			Status: b.Policy.Limit.Status(&state, now), Wait: b.Policy.Limit.Wait(&state, now, b.Cost), Now: now,
			Source: decision.Memory,
		}
	}
	d.Combine()
	return d
}
