package admit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/bucket/memory"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/admit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/identity"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/limit"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/plugin/core/response"
	"github.com/tenant-rate-limiting/kong-plugin-tenant-rate-limiting/schema"
)

// withGlobal has a limit that all tenants share beside those of twoTiers.
func withGlobal(pairs ...string) string {
	return config(pairs...) + "global: {limits: [{name: platform, scope: global, limit: 777, window_size: 60}]}\n"
}

// usageDecider returns a decider that shows the usage of another decider with the same config, and the clock of what it
// keeps.
func usageDecider(t *testing.T, text string, buckets *shelf) (*admit.Decider, *limit.Micros) {
	t.Helper()
	decider, _, _ := deciderOf(t, text+"usage_only: true\n")
	clock := new(limit.Micros)
	elapsed := func() limit.Micros { return *clock }
	own := memory.New(memory.Options{Now: elapsed})
	reader, err := admit.NewUsageReader(buckets, "default", own, elapsed)
	require.NoError(t, err)
	decider.Usage, decider.Buckets, decider.FailClosed = reader, buckets, true
	return decider, clock
}

// asking returns a request for usage.
func asking(r identity.Request, endpoint string) identity.Request {
	r.Method, r.Path, r.Target = "GET", "/usage", "/usage"
	if endpoint != "" {
		r.Target += "?endpoint=" + url.QueryEscape(endpoint)
	}
	return r
}

// answered returns the response to a request for usage, and the usage in it.
func answered(t *testing.T, decider *admit.Decider, request identity.Request) (*response.Response, response.Usage) {
	t.Helper()
	var x admit.Exchange
	var usage response.Usage
	require.NoError(t, decider.Admit(context.Background(), &gateway{request: request}, &x))
	if x.Response.Status == 200 {
		if err := json.Unmarshal(x.Response.Body, &usage); err != nil || !x.Response.Usage || x.Response.Denied ||
			x.Response.Get("Cache-Control") != "no-store" || x.Response.Get("Content-Type") != "application/json" {
			t.Fatalf("%v: %s", err, read(&x.Response))
		}
	}
	return &x.Response, usage
}

// numbers returns used and remaining of each limit, by name.
func numbers(u response.Usage) map[string]string {
	shown := map[string]string{}
	for _, l := range u.Limits {
		if shown[l.Name] = "unknown"; l.Used != nil && l.Remaining != nil {
			shown[l.Name] = fmt.Sprint(*l.Used, "/", *l.Remaining)
		}
	}
	return shown
}

func TestUsageShowsTheTenantsOwnLimitsAndSpendsNothing(t *testing.T) {
	decider, buckets, observed := deciderOf(t, withGlobal())
	var x admit.Exchange
	admitted(t, decider, &gateway{request: ofTier("paid", "u", "POST", "/records")}, &x)
	admitted(t, decider, &gateway{request: ofTier("paid", "u", "GET", "/records")}, &x)
	spent := buckets.used(decider.Policies.Load())
	usage, _ := usageDecider(t, withGlobal(), buckets)
	_, got := answered(t, usage, asking(ofTier("paid", "u", "", ""), ""))
	assert.Equal(t, map[string]string{"daily": "2/7", "writes": "1/0"}, numbers(got), "usage")
	if got.Tenant != "acme" || got.User != "u" || got.Tier != "paid" || got.Endpoint != "" || got.Degraded || got.Exempt {
		t.Errorf("usage is of %+v", got)
	}
	daily := got.Limits[slices.IndexFunc(got.Limits, func(l response.LimitUsed) bool { return l.Name == "daily" })]
	at, err := time.Parse(time.RFC3339, daily.ResetAt)
	if err != nil || at.Unix() != daily.Reset || daily.Reset <= now.Seconds() || daily.Limit != 9 || daily.Quota != 9 ||
		daily.WindowSize != 86400 || daily.Scope != "tenant" {
		t.Errorf("%+v: %v", daily, err)
	}
	_, of := answered(t, usage, asking(ofTier("paid", "u", "", ""), "GET /records"))
	if want := map[string]string{"daily": "2/7"}; !maps.Equal(numbers(of), want) || of.Endpoint != "GET /records" {
		t.Errorf("usage of GET /records is %v of %q, want %v", numbers(of), of.Endpoint, want)
	}
	if !maps.Equal(buckets.used(decider.Policies.Load()), spent) || buckets.takes != 2 || len(*observed) != 2 {
		t.Errorf("after requests for usage %v is used, want %v", buckets.used(decider.Policies.Load()), spent)
	}
}

func TestUsageShowsSharedLimitsOnlyIfTheConfigDoes(t *testing.T) {
	for shown, pairs := range map[bool]string{false: "", true: "show_shared_limits: true\n"} {
		usage, _ := usageDecider(t, withGlobal()+pairs, newShelf())
		r, got := answered(t, usage, asking(ofTier("trial", "", "", ""), ""))
		if _, there := numbers(got)["platform"]; there != shown || strings.Contains(string(r.Body), "777") != shown {
			t.Errorf("%s, want the shared limit to be there: %v", r.Body, shown)
		}
	}
}

func TestUsageIsReadInOneRound(t *testing.T) {
	usage, _ := usageDecider(t, withGlobal(), newShelf())
	var x admit.Exchange
	g := gateway{request: asking(ofTier("paid", "u", "", ""), "")}
	require.NoError(t, usage.Admit(context.Background(), &g, &x))
	want := []identity.Facts{consumer | headers | target}
	assert.True(t, slices.Equal(g.rounds, want), "read %012b, want %012b", g.rounds, want)
}

func TestARequestForUsageThatCannotBeAnsweredSaysWhy(t *testing.T) {
	usage, _ := usageDecider(t, withGlobal(), newShelf())
	posting := asking(ofTier("paid", "u", "", ""), "")
	posting.Method = "POST"
	options := posting
	options.Method = "OPTIONS"
	twice := asking(ofTier("paid", "u", "", ""), "")
	twice.Repeated = "X-User-Id"
	malformed := asking(ofTier("paid", "u", "", ""), "")
	malformed.Target = "/usage?endpoint=%zz"
	head := asking(ofTier("paid", "u", "", ""), "")
	head.Method = "HEAD"
	counted := 0
	usage.Usage.Answered = func(status int) { counted = status }
	for name, test := range map[string]struct {
		request identity.Request
		status  int
		allow   string
	}{
		"anonymous":       {asking(anonymous, ""), 403, ""},
		"POST":            {posting, 405, "GET, HEAD, OPTIONS"},
		"OPTIONS":         {options, 204, "GET, HEAD, OPTIONS"},
		"HEAD":            {head, 200, ""},
		"two values":      {twice, 400, ""},
		"a bad query":     {malformed, 400, ""},
		"a bad endpoint":  {asking(ofTier("paid", "u", "", ""), "records of mine"), 400, ""},
		"a long endpoint": {asking(ofTier("paid", "u", "", ""), "/"+strings.Repeat("x", 2000)), 400, ""},
	} {
		r, _ := answered(t, usage, test.request)
		if r.Status != test.status || r.Get("Allow") != test.allow || counted != test.status {
			t.Errorf("%s: %s, counted as %d; want %d", name, read(r), counted, test.status)
		}
		var problem struct{ Detail, Message string }
		if test.status >= 400 {
			err := json.Unmarshal(r.Body, &problem)
			assert.True(t, err == nil && problem.Detail != "" && problem.Message != "", "%s: %v in %s", name, err, r.Body)
		}
	}
}

func TestUsageOfABannedTenantIsDeniedAndThatOfAnExemptOneHasNoLimits(t *testing.T) {
	for kind, status := range map[string]int{schema.KindBan: 429, schema.KindExempt: 200} {
		usage, _ := usageDecider(t, withGlobal(), newShelf())
		overridden(t, usage, schema.Override{Kind: kind})
		r, got := answered(t, usage, asking(ofTier("paid", "u", "", ""), ""))
		if r.Status != status || got.Exempt != (status == 200) || len(got.Limits) != 0 {
			t.Errorf("%s: %s, want %d", kind, read(r), status)
		}
	}
}

func TestUsageHasNoNumbersOfLimitsThatRedisDidNotAnswerFor(t *testing.T) {
	buckets := newShelf()
	buckets.unavailable = map[string]bool{"daily": true}
	usage, _ := usageDecider(t, withGlobal(), buckets)
	r, got := answered(t, usage, asking(ofTier("paid", "u", "", ""), ""))
	want := map[string]string{"daily": "unknown", "writes": "0/1"}
	assert.True(t, maps.Equal(numbers(got), want) && got.Degraded, "%s, want %v, degraded", r.Body, want)
	buckets.err = errUnavailable
	other := asking(ofTier("paid", "v", "", ""), "")
	var x admit.Exchange
	if err := usage.Admit(context.Background(), &gateway{request: other}, &x); err == nil || x.Response.Status != 503 {
		t.Errorf("with buckets that fail: %v, %s; want 503", err, read(&x.Response))
	}
}

func TestAFloodOfRequestsForUsageReadsFewBuckets(t *testing.T) {
	buckets := newShelf()
	usage, clock := usageDecider(t, withGlobal(), buckets)
	for range 1000 {
		if r, _ := answered(t, usage, asking(ofTier("paid", "u", "", ""), "")); r.Status != 200 {
			t.Fatalf("one and the same request: %s", read(r))
		}
	}
	assert.Equal(t, 1, buckets.peeks, "reads for one answer")
	denied := 0
	for i := range 100 {
		r, _ := answered(t, usage, asking(ofTier("paid", "u", "", ""), fmt.Sprint("route-", i)))
		if r.Status == 429 && r.Get("Retry-After") == "1" {
			denied++
		}
	}
	assert.True(t, buckets.peeks == 10 && denied == 91, "%d reads, %d denied; want 10 and 91", buckets.peeks, denied)
	other := asking(ofTier("paid", "u", "", ""), "")
	other.Consumer.CustomID = "zen"
	if r, got := answered(t, usage, other); r.Status != 200 || got.Tenant != "zen" {
		t.Errorf("another tenant: %s", read(r))
	}
	*clock += limit.Second
	if r, _ := answered(t, usage, asking(ofTier("paid", "u", "", ""), "")); r.Status != 200 || buckets.peeks != 12 {
		t.Errorf("%d reads after a second, want another one: %s", buckets.peeks, read(r))
	}
}

func TestAnAnswerAboutUsageIsNotGivenAgainWhenThePoliciesChange(t *testing.T) {
	usage, _ := usageDecider(t, withGlobal(), newShelf())
	if _, got := answered(t, usage, asking(ofTier("paid", "u", "", ""), "")); len(got.Limits) != 2 {
		t.Fatalf("%+v", got)
	}
	overridden(t, usage, schema.Override{Kind: schema.KindExempt})
	if _, got := answered(t, usage, asking(ofTier("paid", "u", "", ""), "")); !got.Exempt {
		t.Errorf("after an exemption usage is %+v", got)
	}
}

func TestUsageOfVeryManyLimitsIsCut(t *testing.T) {
	var text strings.Builder
	text.WriteString("tiers:\n- name: paid\n  limits:\n")
	for i := range 300 {
		fmt.Fprintf(&text, "  - {name: l%d, scope: tenant, limit: 9, window_size: 60}\n", i)
	}
	usage, _ := usageDecider(t, text.String(), newShelf())
	_, got := answered(t, usage, asking(ofTier("paid", "", "", ""), ""))
	assert.True(t, len(got.Limits) == 256 && got.Truncated, "%d limits, truncated %v", len(got.Limits), got.Truncated)
}
